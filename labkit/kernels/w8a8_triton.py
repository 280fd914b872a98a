"""The Triton kernels of int8 linear layers; labkit/kernels/w8a8.py explains and launches them."""

# mypy: allow-untyped-defs, allow-incomplete-defs

import triton
import triton.language as tl

from labkit.kernels.linear_triton import _finish

INTERPRETED = bool(triton.knobs.runtime.interpret)
"""Whether these kernels were built for Triton's interpreter, which runs them on the CPU one program at a time."""


@triton.jit
def rows_kernel(x, numbers, scales, K, x_row, BLOCK: tl.constexpr):
    """One row in int8, rounded half to even by an addition that leaves float32 no fraction."""
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = column < K
    wide = tl.load(x + row * x_row + column, mask=inside, other=0.0).to(tl.float32)
    top = tl.max(tl.abs(wide), 0)
    bad = tl.max(((wide != wide) | (tl.abs(wide) == float("inf"))).to(tl.int32), 0) > 0
    scale = tl.where(top == 0, 1.0, tl.div_rn(top, 127.0 + 0 * top))
    steps = tl.div_rn(wide, scale + 0 * wide)
    whole = (steps + 12582912.0) - 12582912.0
    whole = tl.minimum(tl.maximum(tl.where(whole != whole, 0.0, whole), -127.0), 127.0)
    tl.store(numbers + row * K + column, whole.to(tl.int8), mask=inside)
    tl.store(scales + row, tl.where(bad, float("nan"), scale))


@triton.jit(do_not_specialize=["tokens"])  # it varies from step to step: no compilation for each
def product_kernel(numbers, x_scales, values, scales, bias, add, out, N, K, row, scale_row, tokens,
                   ROWS: tl.constexpr, TOKENS: tl.constexpr, TILE: tl.constexpr, ACTIVATION: tl.constexpr):  # fmt: skip
    """ROWS rows of the weight by TOKENS tokens, summed in int32."""
    first = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    mine = tl.minimum(first, N - 1).to(tl.int64)
    token, place = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS), tl.arange(0, TILE)
    used = (token < tokens)[:, None]
    x_at = numbers + token.to(tl.int64)[:, None] * K + place[None, :]
    w_at = values + mine[:, None] * row + place[None, :]
    acc = tl.zeros((ROWS, TOKENS), tl.int32)
    for begin in tl.range(0, K, TILE):
        inside = (begin + place < K)[None, :]
        w = tl.load(w_at + begin, mask=inside, other=0)
        acc = tl.dot(w, tl.trans(tl.load(x_at + begin, mask=used & inside, other=0)), acc, out_dtype=tl.int32)
    x_scale = tl.load(x_scales + token, mask=token < tokens, other=0.0)
    value = acc.to(tl.float32) * tl.load(scales + mine * scale_row).to(tl.float32)[:, None] * x_scale[None, :]
    places = token.to(tl.int64)[None, :] * N + first[:, None]
    mask = (first < N)[:, None] & (token < tokens)[None, :]
    columns = first[:, None] + tl.zeros((1, TOKENS), tl.int32)
    _finish(value, bias, add, out, columns, places, mask, ACTIVATION)
