"""The Triton kernels of packed linear layers; labkit/kernels/packed_linear.py explains and launches them."""

# mypy: allow-untyped-defs, allow-incomplete-defs

import triton
import triton.language as tl

from labkit.kernels.linear_triton import _leave, _share_of, _wake

INTERPRETED = bool(triton.knobs.runtime.interpret)
"""Whether these kernels were built for Triton's interpreter, which runs them on the CPU one program at a time."""


@triton.jit
def _halves(byte, HALF: tl.constexpr):
    """The columns of a byte's low half; the high half's are HALF further on."""
    return byte // HALF * (2 * HALF) + byte % HALF


@triton.jit
def _float(word, MASK: tl.constexpr, magic):
    """The bits under MASK as a number, exact: written into a float32 that stands for 2²³, less 2²³.

    Masking and writing are one instruction, as one of the two constants comes in a register: `magic`, the bits of 2²³.
    """
    return ((word & MASK) | magic).to(tl.float32, bitcast=True) - 8388608.0


@triton.jit
def _by_byte(x, C: tl.constexpr):
    """x [C, 8] of the eight bytes of two words, as one [C, 2] for each byte of a word."""
    even, odd = tl.split(tl.reshape(x, (C, 2, 2, 2)))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@triton.jit
def _dot_nibbles(w, low, high, C: tl.constexpr, magic):
    """Σ q · x [ROWS, C] of words of eight numbers [ROWS, C, 2] and the x of their low and high halves [C, 8].

    A number is read where it lies: one that is four bits further left counts sixteen times as much, and its x is
    divided by that, which is exact.
    """
    a, b, c, d = _by_byte(low, C)
    e, f, g, h = _by_byte(high, C)
    b, d, e, g = b * (1 / 256), d * (1 / 256), e * (1 / 16), g * (1 / 16)
    f, h = f * (1 / 4096), h * (1 / 4096)
    upper = w >> 16
    part = _float(w, 0xF, magic) * a[None]  # one after the other, each a fused multiply-add
    part += _float(w, 0xF00, magic) * b[None]
    part += _float(upper, 0xF, magic) * c[None]
    part += _float(upper, 0xF00, magic) * d[None]
    part += _float(w, 0xF0, magic) * e[None]
    part += _float(w, 0xF000, magic) * f[None]
    part += _float(upper, 0xF0, magic) * g[None]
    part += _float(upper, 0xF000, magic) * h[None]
    return tl.sum(part, 2)


@triton.jit
def _dot_bytes(w, x, C: tl.constexpr):
    """Σ q · x [ROWS, C] of words of four signed numbers [ROWS, C, 2] and their x [C, 8]."""
    a, b, c, d = _by_byte(x, C)
    part = (w << 24 >> 24).to(tl.float32) * a[None]
    part += (w << 16 >> 24).to(tl.float32) * b[None]
    part += (w << 8 >> 24).to(tl.float32) * c[None]
    part += (w >> 24).to(tl.float32) * d[None]
    return tl.sum(part, 2)


@triton.jit
def _part(w, x, byte, stop, K, magic, KIND: tl.constexpr, HALF: tl.constexpr, C: tl.constexpr):
    """(Σ q · x [ROWS, C], Σ x [C]) of eight bytes for each of C threads at `byte` [C, 8]."""
    if KIND == "int4":
        column = _halves(byte, HALF)
        low = tl.load(x + column, mask=(byte < stop) & (column < K), other=0.0).to(tl.float32)
        high = tl.load(x + column + HALF, mask=(byte < stop) & (column + HALF < K), other=0.0).to(tl.float32)
        dot = _dot_nibbles(w, low, high, C, magic)
        total = tl.sum(low + high, 1)
    else:
        whole = tl.load(x + byte, mask=(byte < stop) & (byte < K), other=0.0).to(tl.float32)
        dot = _dot_bytes(w, whole, C) if KIND == "int8" else tl.sum(w.to(tl.float32) * whole[None], 2)
        total = tl.sum(whole, 1)
    return dot, total


@triton.jit(do_not_specialize=["splits"])
def vector_kernel(x, values, scales, zeros, bias, add, out, partial, counters, N, K, width, row, scale_row, splits,
                  magic, KIND: tl.constexpr, GROUP: tl.constexpr, HALF: tl.constexpr, AFFINE: tl.constexpr,
                  MIDDLE: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr, ACTIVATION: tl.constexpr,
                  SPLIT: tl.constexpr, COUNTED: tl.constexpr, PAIR: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """One token. Program (block, share): ROWS rows of the weight, walked along their bytes, TILE at a time.

    A thread has eight neighbouring bytes, or with PAIR twice eight, which share a scale. Integers come in words of four
    bytes. The next tile is on its way while one is worked on.
    """
    LANES: tl.constexpr = 2 if PAIR else 1
    C: tl.constexpr = TILE // (8 * LANES)
    WORD: tl.constexpr = 1 if KIND == "fp8" else 4
    NOTHING: tl.constexpr = 0.0 if KIND == "fp8" else 0
    _wake(PDL)
    first = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    mine = tl.minimum(first, N - 1).to(tl.int64)  # rows past the end read the last one again: no masks inside
    chunk, lane = tl.arange(0, C) * (8 * LANES), tl.arange(0, 8)
    start, stop = _share_of(width, splits, TILE)
    inner = (chunk // WORD)[:, None] + tl.arange(0, 8 // WORD)[None, :]
    at_word = values + mine[:, None, None] * (row // WORD) + inner[None]
    w = tl.load(at_word + start // WORD, mask=(start + chunk < stop)[None, :, None], other=NOTHING)
    if PAIR:
        v = tl.load(
            at_word + (start + 8) // WORD, mask=(start + 8 + chunk < stop)[None, :, None], other=NOTHING
        )
    if PDL:  # weights do not depend on the kernel before: the first of them arrive while it ends
        tl.extra.cuda.gdc_wait()
    acc = tl.zeros((ROWS, C), tl.float32)
    total_x = tl.zeros((C,), tl.float32)
    for begin in tl.range(start, stop, TILE):
        byte, after = begin + chunk[:, None] + lane[None, :], begin + TILE
        now = w
        w = tl.load(at_word + after // WORD, mask=(after + chunk < stop)[None, :, None], other=NOTHING)
        part, sum_x = _part(now, x, byte, stop, K, magic, KIND, HALF, C)
        if PAIR:
            also = v
            v = tl.load(
                at_word + (after + 8) // WORD, mask=(after + 8 + chunk < stop)[None, :, None], other=NOTHING
            )
            more, sum_more = _part(also, x, byte + 8, stop, K, magic, KIND, HALF, C)
            part, sum_x = part + more, sum_x + sum_more
        if GROUP > 0:
            served = (begin + chunk) // (HALF if KIND == "int4" else GROUP)
            there = (begin + chunk < stop)[None, :]
            at = mine[:, None] * scale_row + served[None, :]
            scale = tl.load(scales + at, mask=there, other=0.0).to(tl.float32)
            if AFFINE:
                part -= tl.load(zeros + at, mask=there, other=0).to(tl.float32) * sum_x[None, :]
            elif MIDDLE != 0:
                part -= MIDDLE * sum_x[None, :]
            acc += part * scale
        else:
            acc += part
            total_x += sum_x
    total = tl.sum(acc, 1)
    if GROUP == 0:
        at = mine * scale_row
        if AFFINE:
            total -= tl.load(zeros + at).to(tl.float32) * tl.sum(total_x, 0)
        elif MIDDLE != 0:
            total -= MIDDLE * tl.sum(total_x, 0)
        total *= tl.load(scales + at).to(tl.float32)
    _leave(total, bias, add, out, partial, counters, first, first, first < N, N, splits,
           ACTIVATION, SPLIT, COUNTED)  # fmt: skip


@triton.jit
def _whole(w, zero, like: tl.constexpr, WIDE: tl.constexpr):
    """Stored numbers less their zero point, in the dtype of x, which holds them exactly."""
    w = w.to(tl.float32) - zero
    return w if WIDE else w.to(like)


@triton.jit
def _nibbles(w, zero, ROWS: tl.constexpr, TILE: tl.constexpr, like: tl.constexpr):
    """The low and the high numbers of bytes [ROWS, TILE] less their zero points [ROWS, 1] in half precision, exact.

    Four bytes at a time: their halves are masked out, two each are put beside the upper bytes of two numbers that stand
    for 128 (bfloat16) or 1024 (float16), and one multiply-add takes that and the zero points off: two instructions for
    a weight. The compiler would convert each by itself, which takes six.
    """
    BFLOAT: tl.constexpr = like == tl.bfloat16
    off = tl.broadcast_to((-zero - (128.0 if BFLOAT else 1024.0)).to(like), (ROWS, TILE))
    if BFLOAT:
        low, high = tl.inline_asm_elementwise(
            """
            {
            .reg .b32 a, b, m, one;
            mov.b32 m, 0x43434343;
            mov.b32 one, 0x3F803F80;
            and.b32 a, $4, 0x0F0F0F0F;
            shr.u32 b, $4, 4;
            and.b32 b, b, 0x0F0F0F0F;
            prmt.b32 $0, a, m, 0x4140;
            prmt.b32 $1, a, m, 0x4342;
            prmt.b32 $2, b, m, 0x4140;
            prmt.b32 $3, b, m, 0x4342;
            fma.rn.bf16x2 $0, $0, one, $5;
            fma.rn.bf16x2 $1, $1, one, $6;
            fma.rn.bf16x2 $2, $2, one, $5;
            fma.rn.bf16x2 $3, $3, one, $6;
            }
            """,
            "=&r,=&r,=&r,=&r,r,r,r", [w, off], dtype=(tl.bfloat16, tl.bfloat16), is_pure=True, pack=4,
        )  # fmt: skip
    else:
        low, high = tl.inline_asm_elementwise(
            """
            {
            .reg .b32 a, b, m, one;
            mov.b32 m, 0x64646464;
            mov.b32 one, 0x3C003C00;
            and.b32 a, $4, 0x0F0F0F0F;
            shr.u32 b, $4, 4;
            and.b32 b, b, 0x0F0F0F0F;
            prmt.b32 $0, a, m, 0x4140;
            prmt.b32 $1, a, m, 0x4342;
            prmt.b32 $2, b, m, 0x4140;
            prmt.b32 $3, b, m, 0x4342;
            fma.rn.f16x2 $0, $0, one, $5;
            fma.rn.f16x2 $1, $1, one, $6;
            fma.rn.f16x2 $2, $2, one, $5;
            fma.rn.f16x2 $3, $3, one, $6;
            }
            """,
            "=&r,=&r,=&r,=&r,r,r,r", [w, off], dtype=(tl.float16, tl.float16), is_pure=True, pack=4,
        )  # fmt: skip
    return low, high


@triton.jit(do_not_specialize=["tokens", "splits"])  # they vary from step to step: no compilation for each
def tile_kernel(x, values, scales, zeros, bias, add, out, partial, counters, N, K, width, row, scale_row, splits,
                tokens, x_row, KIND: tl.constexpr, GROUP: tl.constexpr, HALF: tl.constexpr, AFFINE: tl.constexpr,
                MIDDLE: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
                ACTIVATION: tl.constexpr, SPLIT: tl.constexpr, COUNTED: tl.constexpr, TOKENS: tl.constexpr,
                WIDE: tl.constexpr, STAGES: tl.constexpr):  # fmt: skip
    """TOKENS tokens. Program (block, share, tokens): ROWS rows of the weight, TILE bytes of each at a time.

    Where one scale serves the whole tile of a row it multiplies the sums; else the weights, before they are rounded.
    """
    NOTHING: tl.constexpr = 0.0 if KIND == "fp8" else 0
    FINE: tl.constexpr = GROUP > 0 and (HALF if KIND == "int4" else GROUP) < TILE
    block, token_block = tl.program_id(0), tl.program_id(2)
    first = block * ROWS + tl.arange(0, ROWS)
    mine = tl.minimum(first, N - 1).to(tl.int64)
    token, place = token_block * TOKENS + tl.arange(0, TOKENS), tl.arange(0, TILE)
    used = (token < tokens)[:, None]
    x_at = x + token.to(tl.int64)[:, None] * x_row
    start, stop = _share_of(width, splits, TILE)
    acc = tl.zeros((ROWS, TOKENS), tl.float32)
    for begin in tl.range(start, stop, TILE, num_stages=STAGES):
        byte = begin + place
        inside = byte < stop
        w = tl.load(values + mine[:, None] * row + byte[None, :], mask=inside[None, :], other=NOTHING)
        if FINE:
            at = mine[:, None] * scale_row + (byte // (HALF if KIND == "int4" else GROUP))[None, :]
            there = inside[None, :]
        else:
            at = mine[:, None] * scale_row + (
                begin // (HALF if KIND == "int4" else GROUP) if GROUP > 0 else 0
            )
            there = mine[:, None] >= 0
        zero = MIDDLE * 1.0
        if AFFINE:
            zero = tl.load(zeros + at, mask=there, other=0).to(tl.float32)
        scale = tl.load(scales + at, mask=there, other=0.0).to(tl.float32) if GROUP > 0 else 1.0
        like = x.dtype.element_ty
        if KIND == "int4":
            column = _halves(byte, HALF)[None, :]
            low = tl.load(x_at + column, mask=used & inside[None, :] & (column < K), other=0.0)
            high = tl.load(x_at + column + HALF, mask=used & inside[None, :] & (column + HALF < K), other=0.0)
            if WIDE:
                low, high = low.to(tl.float32), high.to(tl.float32)
            if WIDE or FINE:
                q_low, q_high = _whole(w & 15, zero, like, WIDE), _whole(w >> 4, zero, like, WIDE)
            else:
                q_low, q_high = _nibbles(w, zero + 0.0 * mine[:, None].to(tl.float32), ROWS, TILE, like)
            if FINE:
                q_low, q_high = q_low.to(tl.float32) * scale, q_high.to(tl.float32) * scale
                if not WIDE:
                    q_low, q_high = q_low.to(like), q_high.to(like)
                acc = tl.dot(q_low, tl.trans(low), acc, input_precision="ieee")
                acc = tl.dot(q_high, tl.trans(high), acc, input_precision="ieee")
            else:
                part = tl.dot(q_low, tl.trans(low), input_precision="ieee")
                part = tl.dot(q_high, tl.trans(high), part, input_precision="ieee")
                acc += part * scale
        else:
            whole = tl.load(x_at + byte[None, :], mask=used & (inside & (byte < K))[None, :], other=0.0)
            if WIDE:
                whole = whole.to(tl.float32)
            q = _whole(w, zero, like, WIDE)
            if FINE:
                q = q.to(tl.float32) * scale
                q = q if WIDE else q.to(like)
                acc = tl.dot(q, tl.trans(whole), acc, input_precision="ieee")
            elif GROUP > 0:
                acc += tl.dot(q, tl.trans(whole), input_precision="ieee") * scale
            else:
                acc = tl.dot(q, tl.trans(whole), acc, input_precision="ieee")
    if GROUP == 0:
        acc *= tl.load(scales + mine * scale_row).to(tl.float32)[:, None]
    places = token[None, :] * N + first[:, None]
    mask = (first < N)[:, None] & (token < tokens)[None, :]
    columns = first[:, None] + tl.zeros((1, TOKENS), tl.int32)
    _leave(acc, bias, add, out, partial, counters, columns, places, mask, tokens * N, splits,
           ACTIVATION, SPLIT, COUNTED)  # fmt: skip
