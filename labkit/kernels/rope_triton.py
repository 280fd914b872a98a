"""The Triton kernel of rotary positions and the write to the paged store; rope.py explains and launches it.

Heads are held in three parts: the first number of each rotated pair [TILE, HALF_PAD], the second
[TILE, HALF_PAD], and the numbers that are not rotated [TILE, REST_PAD]. So rotation needs no exchange
between threads, and nothing is read twice.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs

import triton
import triton.language as tl

from labkit.kernels.rms_norm_triton import weigh

INTERPRETED = bool(triton.knobs.runtime.interpret)
"""Whether these kernels were built for Triton's interpreter, which runs them on the CPU one program at a time."""


@triton.jit
def _load(pointer, head, inside, DIM: tl.constexpr, HALF: tl.constexpr, HALF_PAD: tl.constexpr,
          REST_PAD: tl.constexpr):  # fmt: skip
    """Heads `head` [TILE] at pointer [heads, DIM] in three parts; zeros outside."""
    pair, rest = tl.arange(0, HALF_PAD)[None, :], tl.arange(0, REST_PAD)[None, :]
    start, inside = pointer + head[:, None] * DIM, inside[:, None]
    first = tl.load(start + pair, mask=inside & (pair < HALF), other=0.0)
    second = tl.load(start + (HALF + pair), mask=inside & (pair < HALF), other=0.0)
    third = tl.load(start + (2 * HALF + rest), mask=inside & (rest < DIM - 2 * HALF), other=0.0)
    return first, second, third


@triton.jit
def _store(pointer, head, inside, first, second, third, DIM: tl.constexpr, HALF: tl.constexpr,
           HALF_PAD: tl.constexpr, REST_PAD: tl.constexpr):  # fmt: skip
    """The three parts of heads `head` to pointer [heads, DIM]."""
    pair, rest = tl.arange(0, HALF_PAD)[None, :], tl.arange(0, REST_PAD)[None, :]
    start, inside = pointer + head[:, None] * DIM, inside[:, None]
    tl.store(start + pair, first, mask=inside & (pair < HALF))
    tl.store(start + (HALF + pair), second, mask=inside & (pair < HALF))
    tl.store(start + (2 * HALF + rest), third, mask=inside & (rest < DIM - 2 * HALF))


@triton.jit
def _turn(first, second, third, head, inside, cos, sin, token, weight, eps, DIM: tl.constexpr, HALF: tl.constexpr,
          HALF_PAD: tl.constexpr, REST_PAD: tl.constexpr, OFFSET: tl.constexpr, WIDE: tl.constexpr):  # fmt: skip
    """Heads normed if there is a weight, and rotated; rounded to their dtype after each, as the model does."""
    same = head * 0  # every head loads them: cheaper than handing them from thread to thread
    if weight is not None:
        a, b, c = first.to(tl.float32), second.to(tl.float32), third.to(tl.float32)
        scale = tl.rsqrt((tl.sum(a * a, 1) + tl.sum(b * b, 1) + tl.sum(c * c, 1)) / DIM + eps)[:, None]
        w_first, w_second, w_third = _load(weight, same, inside, DIM, HALF, HALF_PAD, REST_PAD)
        first = weigh(a * scale, w_first, first, OFFSET, WIDE)
        second = weigh(b * scale, w_second, second, OFFSET, WIDE)
        third = weigh(c * scale, w_third, third, OFFSET, WIDE)
    row = token * (2 * HALF)
    cos_first, cos_second, _ = _load(cos + row, same, inside, 2 * HALF, HALF, HALF_PAD, 1)
    sin_first, sin_second, _ = _load(sin + row, same, inside, 2 * HALF, HALF, HALF_PAD, 1)
    a, b = first.to(tl.float32), second.to(tl.float32)
    turned = a * cos_first.to(tl.float32) - b * sin_first.to(tl.float32)
    second = (b * cos_second.to(tl.float32) + a * sin_second.to(tl.float32)).to(second.dtype)
    return turned.to(first.dtype), second, third


@triton.jit
def _largest(x):
    """Of each row of x: the largest magnitude, NaNs aside, and 1 if there is a NaN, else 0."""
    return tl.max(tl.abs(x), 1), tl.max((x != x).to(tl.int32), 1)


@triton.jit
def _steps(x, scale):
    """x in steps of scale [TILE], rounded half to even by an addition that leaves float32 no fraction; NaN: 1."""
    steps = tl.div_rn(x, tl.where(scale == 0, 1.0, scale)[:, None] + tl.zeros_like(x))
    whole = (steps + 12582912.0) - 12582912.0
    return tl.minimum(tl.maximum(tl.where(steps != steps, 1.0, whole), -127.0), 127.0).to(tl.int8)


@triton.jit
def _write(pages, scales, slot, head, inside, first, second, third, KV_HEADS: tl.constexpr, DIM: tl.constexpr,
           HALF: tl.constexpr, HALF_PAD: tl.constexpr, REST_PAD: tl.constexpr, DIVIDE: tl.constexpr):  # fmt: skip
    """Heads to a slot of the store unless it is negative; with scales in int8, bit for bit pages.quantise."""
    inside = inside & (slot >= 0)
    if scales is not None:
        first, second, third = first.to(tl.float32), second.to(tl.float32), third.to(tl.float32)
        top_first, nan_first = _largest(first)
        top_second, nan_second = _largest(second)
        top_third, nan_third = _largest(third)
        top = tl.maximum(tl.maximum(top_first, top_second), top_third)
        # torch divides by a number on a CPU, and multiplies by its reciprocal on a GPU
        scale = tl.div_rn(top, tl.full(top.shape, 127.0, tl.float32)) if DIVIDE else top * (1.0 / 127.0)
        scale = tl.where((nan_first | nan_second | nan_third) > 0, float("nan"), scale)
        stored = tl.where(scale == float("inf"), float("nan"), scale)
        tl.store(scales + slot * KV_HEADS + head, stored, mask=inside)
        first, second, third = _steps(first, scale), _steps(second, scale), _steps(third, scale)
    _store(pages + slot * (KV_HEADS * DIM), head, inside, first, second, third, DIM, HALF, HALF_PAD, REST_PAD)


@triton.jit
def rope_kernel(qkv, cos, sin, q, k, keys, values, key_scales, value_scales, slots, q_weight, k_weight, eps,
                HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, HALF: tl.constexpr,
                HALF_PAD: tl.constexpr, REST_PAD: tl.constexpr, TILE: tl.constexpr, PARTS: tl.constexpr,
                OFFSET: tl.constexpr, WIDE: tl.constexpr, DIVIDE: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """TILE heads of q, of k or of v of one token; a token's programs follow one another."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    Q_PARTS: tl.constexpr = (HEADS + TILE - 1) // TILE
    KV_PARTS: tl.constexpr = (KV_HEADS + TILE - 1) // TILE
    program = tl.program_id(0)
    token, part = (program // PARTS).to(tl.int64), program % PARTS
    heads = qkv + token * ((HEADS + 2 * KV_HEADS) * DIM)
    slot = token
    if keys is not None:
        slot = tl.load(slots + token).to(tl.int64)
    if part < Q_PARTS:
        head = part * TILE + tl.arange(0, TILE)
        inside = head < HEADS
        a, b, c = _load(heads, head, inside, DIM, HALF, HALF_PAD, REST_PAD)
        a, b, c = _turn(
            a, b, c, head, inside, cos, sin, token, q_weight, eps, DIM, HALF, HALF_PAD, REST_PAD, OFFSET, WIDE
        )
        _store(q + token * (HEADS * DIM), head, inside, a, b, c, DIM, HALF, HALF_PAD, REST_PAD)
    elif part < Q_PARTS + KV_PARTS:
        head = (part - Q_PARTS) * TILE + tl.arange(0, TILE)
        inside = head < KV_HEADS
        a, b, c = _load(heads + HEADS * DIM, head, inside, DIM, HALF, HALF_PAD, REST_PAD)
        a, b, c = _turn(
            a, b, c, head, inside, cos, sin, token, k_weight, eps, DIM, HALF, HALF_PAD, REST_PAD, OFFSET, WIDE
        )
        _store(k + token * (KV_HEADS * DIM), head, inside, a, b, c, DIM, HALF, HALF_PAD, REST_PAD)
        if keys is not None:
            _write(
                keys, key_scales, slot, head, inside, a, b, c, KV_HEADS, DIM, HALF, HALF_PAD, REST_PAD, DIVIDE
            )
    elif keys is not None:
        head = (part - Q_PARTS - KV_PARTS) * TILE + tl.arange(0, TILE)
        inside = head < KV_HEADS
        a, b, c = _load(heads + (HEADS + KV_HEADS) * DIM, head, inside, DIM, HALF, HALF_PAD, REST_PAD)
        _write(
            values, value_scales, slot, head, inside, a, b, c, KV_HEADS, DIM, HALF, HALF_PAD, REST_PAD, DIVIDE
        )
