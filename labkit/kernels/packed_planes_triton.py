"""The Triton kernel of packed linear layers for a few tokens; labkit/kernels/packed_linear.py explains it."""

# mypy: allow-untyped-defs, allow-incomplete-defs

import triton
import triton.language as tl

from labkit.kernels.gated_triton import activate
from labkit.kernels.linear_triton import _leave, _share_of, _wake

LARGEST = tl.constexpr(32512.0)  # 127 · 256: both planes of the largest |x| fit a signed byte
SMALLEST = tl.constexpr(1e-33)  # a chunk of zeros is divided by this
ROUNDS = tl.constexpr(
    12582912.0
)  # 1.5 · 2²³: added to a float32 it leaves no fraction, and whole numbers in its bits


@triton.jit
def _larger(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _larger_and_sum(top, total, other_top, other_total):
    return _larger(top, other_top), total + other_total


@triton.jit
def _range_of(v, COMPILED: tl.constexpr):
    """(largest |v|, sum of v) of every row, on one way through the threads; the interpreter knows no such reduction."""
    if COMPILED:
        top, total = tl.reduce((tl.abs(v), v), 1, _larger_and_sum)
    else:
        top, total = tl.reduce(tl.abs(v), 1, _larger), tl.sum(v, 1)
    return top, total


@triton.jit
def _nibbles(w, COMPILED: tl.constexpr):
    """Of bytes: 16 · (the low halves - 8) and 16 · (the high halves - 8), as signed bytes.

    Compiled, four bytes at a time: one shift, and one logical operation for each half.
    """
    if COMPILED:
        low, high = tl.inline_asm_elementwise(
            """
            shl.b32 $0, $2, 4;
            lop3.b32 $0, $0, 0xF0F0F0F0, 0x80808080, 0x6A;
            lop3.b32 $1, $2, 0xF0F0F0F0, 0x80808080, 0x6A;
            """,  # 0x6A: (a & b) ^ c
            "=&r,=&r,r", [w], dtype=(tl.int8, tl.int8), is_pure=True, pack=4,
        )  # fmt: skip
    else:
        low, high = ((w << 4) ^ 128).to(tl.int8, bitcast=True), ((w & 240) ^ 128).to(tl.int8, bitcast=True)
    return low, high


@triton.jit
def _product(w, upper, lower):
    """Σ w · (256 · upper + lower) [ROWS, CHUNKS] in int32, exact."""
    return tl.dot(w, upper, out_dtype=tl.int32) * 256 + tl.dot(w, lower, out_dtype=tl.int32)


@triton.jit
def _root_of(x, tokens, x_row, K, eps, TOKENS: tl.constexpr):
    """1 / sqrt(mean(x²) + eps) [TOKENS]."""
    WALK: tl.constexpr = 1024 // TOKENS
    token, place = tl.arange(0, TOKENS), tl.arange(0, WALK)
    squares = tl.zeros((TOKENS, WALK), tl.float32)
    for begin in range(0, K, WALK):
        at = token.to(tl.int64)[:, None] * x_row + begin + place[None, :]
        mask = (token < tokens)[:, None] & (begin + place < K)[None, :]
        part = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
        squares += part * part
    return tl.rsqrt(tl.sum(squares, 1) / K + eps)


@triton.jit
def _fetch(at, size):
    """Ask for `size` bytes from each address to come to the cache."""
    tl.inline_asm_elementwise(
        "{ cp.async.bulk.prefetch.L2.global [$1], $2; mov.b32 $0, 0; }", "=r,l,r",
        [at, size], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit(do_not_specialize=["tokens", "splits"])  # they vary from step to step: no compilation for each
def planes_kernel(x, values, scales, zeros, bias, add, out, partial, counters, N, K, width, row, scale_row, splits,
                  tokens, x_row, norm, eps, KIND: tl.constexpr, GROUP: tl.constexpr, HALF: tl.constexpr,
                  AFFINE: tl.constexpr, MIDDLE: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
                  ACTIVATION: tl.constexpr, SPLIT: tl.constexpr, COUNTED: tl.constexpr, TOKENS: tl.constexpr,
                  CHUNKS: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr, COMPILED: tl.constexpr,
                  OFFSET: tl.constexpr, GATE: tl.constexpr):  # fmt: skip
    """Program (block, share): ROWS rows of the weight, TILE bytes of each at a time, by all tokens.

    Column c of a product is one chunk of x: the columns of one group, in int4 of one half of its bytes, of one token.
    It is zero at the bytes of other groups, so that one product of the tile gives a sum for each group. CHUNKS is
    their number, filled up to what tensor cores take.

    x is the input, or with `norm` (its weight) what an RMSNorm makes of it, whose root multiplies the sums; with GATE
    it is activation(first K columns) · the next K.
    """
    HALVES: tl.constexpr = 2 if KIND == "int4" else 1
    SERVED: tl.constexpr = GROUP // HALVES if GROUP > 0 else TILE  # bytes that share a scale
    SPAN: tl.constexpr = SERVED if SERVED < TILE else TILE  # of them in a tile
    LONE: tl.constexpr = HALVES * TILE // SPAN * TOKENS == 1
    NOTHING: tl.constexpr = 0.0 if KIND == "fp8" else 0
    _wake(PDL)
    first = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    mine = tl.minimum(first, N - 1).to(tl.int64)  # rows past the end read the last one again: no masks inside
    chunk, place = tl.arange(0, CHUNKS), tl.arange(0, TILE)
    token, half, group = chunk % TOKENS, chunk // TOKENS % HALVES, chunk // (TOKENS * HALVES)
    if LONE:
        its = (place >= 0)[None, :]
        x_at = x
    else:
        its = ((token < tokens) & (group < TILE // SPAN))[:, None] & (
            place[None, :] // SPAN == group[:, None]
        )
        x_at = x + token.to(tl.int64)[:, None] * x_row
    place_column = (place // HALF * (2 * HALF) + place % HALF)[None, :] + (half * HALF)[:, None]
    start, stop = _share_of(width, splits, TILE)
    last_group = tl.maximum(scale_row, 1) - 1
    acc = tl.zeros((ROWS, CHUNKS), tl.float32)
    if PDL:  # weights do not depend on the kernel before: the first of them arrive while it ends
        size = tl.minimum(stop - start, TILE) // 16 * 16
        if row % 16 == 0:
            _fetch((values + mine * row + start).to(tl.int64), tl.zeros((ROWS,), tl.int32) + size)
        tl.extra.cuda.gdc_wait()
    if norm is not None:
        root = _root_of(x, tokens, x_row, K, eps, TOKENS)
    row_zero = tl.load(zeros + mine * scale_row).to(tl.float32)[:, None] if GROUP == 0 and AFFINE else 0.0
    for begin in tl.range(start, stop, TILE, num_stages=STAGES):
        byte = (begin + place)[None, :]
        inside = byte < stop
        w = tl.load(values + mine[:, None] * row + byte, mask=inside, other=NOTHING)
        if GROUP > 0:
            at = mine[:, None] * scale_row + tl.minimum((begin + group * SPAN) // SERVED, last_group)[None, :]
            scale = tl.load(scales + at).to(tl.float32)
        zero = tl.load(zeros + at).to(tl.float32) if GROUP > 0 and AFFINE else row_zero
        if KIND != "int4":
            column = byte
        elif TILE % HALF == 0:  # a tile holds whole blocks: nothing to divide in the loop
            column = 2 * begin + place_column
        else:
            column = byte // HALF * (2 * HALF) + byte % HALF + (half * HALF)[:, None]
        there = its & inside & (column < K)
        v = tl.load(x_at + column, mask=there, other=0.0).to(tl.float32)
        if norm is not None:
            v *= OFFSET + tl.load(norm + column, mask=there, other=0.0).to(tl.float32)
        if GATE is not None:
            v = activate(v, GATE) * tl.load(x_at + K + column, mask=there, other=0.0).to(tl.float32)
        top, total = _range_of(v, COMPILED)
        top = _larger(top, SMALLEST)  # NaN stays NaN, and so do its products
        v = v * ((0 * top + LARGEST) / top)[:, None]
        if LONE:
            v, top = tl.where(chunk[:, None] == 0, v, 0.0), tl.broadcast_to(tl.sum(top, 0), (CHUNKS,))
            total = tl.where(chunk == 0, tl.broadcast_to(tl.sum(total, 0), (CHUNKS,)), 0.0)
        if KIND == "fp8":
            part = tl.dot(w.to(tl.float16), tl.trans(v.to(tl.float16)))
        else:
            bits = (v + ROUNDS).to(tl.int32, bitcast=True)  # a whole number in the lower two bytes
            upper, lower = tl.trans(((bits + 128) >> 8).to(tl.int8)), tl.trans(bits.to(tl.int8))
            if KIND == "int4":
                low, high = _nibbles(w, COMPILED)
                in_low, in_high = _product(low, upper, lower), _product(high, upper, lower)
                exact = tl.where((half == 0)[None, :], in_low, in_high)
            else:
                exact = _product(w, upper, lower)
            part = exact.to(tl.float32)
        part *= (top * (1 / (16 * LARGEST) if KIND == "int4" else 1 / LARGEST))[None, :]
        if AFFINE:
            part -= (zero - MIDDLE) * total[None, :]
        acc += part * scale if GROUP > 0 else part
    if GROUP == 0:
        acc *= tl.load(scales + mine * scale_row).to(tl.float32)[:, None]
    if TOKENS == 1:
        value = tl.sum(acc, 1)
        if norm is not None:
            value *= tl.sum(root, 0)
        _leave(value, bias, add, out, partial, counters, first, first, first < N, N, splits,
               ACTIVATION, SPLIT, COUNTED)  # fmt: skip
    else:
        value = tl.sum(tl.reshape(acc, (ROWS, CHUNKS // TOKENS, TOKENS)), 1)
        if norm is not None:
            value *= root[None, :]
        row_of = tl.arange(0, TOKENS)[None, :]
        columns = first[:, None] + tl.zeros((1, TOKENS), tl.int32)
        _leave(value, bias, add, out, partial, counters, columns, row_of * N + first[:, None],
               (first < N)[:, None] & (row_of < tokens), tokens * N, splits, ACTIVATION, SPLIT, COUNTED)  # fmt: skip
