"""The Triton kernels of packed linear layers; labkit/kernels/packed_linear.py explains and launches them."""

# mypy: allow-untyped-defs, allow-incomplete-defs

import triton
import triton.language as tl

from labkit.kernels.linear_triton import _leave, _share_of
from labkit.kernels.packed_planes_triton import planes_kernel as planes_kernel

INTERPRETED = bool(triton.knobs.runtime.interpret)
"""Whether these kernels were built for Triton's interpreter, which runs them on the CPU one program at a time."""


@triton.jit
def _halves(byte, HALF: tl.constexpr):
    """The columns of a byte's low half; the high half's are HALF further on."""
    return byte // HALF * (2 * HALF) + byte % HALF


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
