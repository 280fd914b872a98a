"""The Triton kernel of RMSNorm; labkit/kernels/rms_norm.py explains and launches it."""

# mypy: allow-untyped-defs, allow-incomplete-defs

import triton
import triton.language as tl

INTERPRETED = bool(triton.knobs.runtime.interpret)
"""Whether these kernels were built for Triton's interpreter, which runs them on the CPU one program at a time."""


@triton.jit
def weigh(unit, weight, like, OFFSET: tl.constexpr, WIDE: tl.constexpr):
    """unit (float32) times OFFSET + weight in the dtype of `like`, rounded where the model would round."""
    scale = weight.to(tl.float32)
    if OFFSET != 0:
        scale = OFFSET + scale
    if not WIDE:
        scale = scale.to(like.dtype).to(tl.float32)
        unit = unit.to(like.dtype).to(tl.float32)
    return (unit * scale).to(like.dtype)


@triton.jit
def rms_norm_kernel(x, add, weight, normed, summed, eps, HIDDEN: tl.constexpr, BLOCK: tl.constexpr,
                    OFFSET: tl.constexpr, WIDE: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """One token: x [HIDDEN], add [HIDDEN] or None → normed and, with add, summed."""
    column = tl.arange(0, BLOCK)
    inside = column < HIDDEN
    w = tl.load(weight + column, mask=inside, other=0.0)
    if PDL:  # the weight is there already; what the kernel before writes is not
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    place = tl.program_id(0).to(tl.int64) * HIDDEN + column
    total = tl.load(x + place, mask=inside, other=0.0)
    wide = total.to(tl.float32)
    if add is not None:
        total = (wide + tl.load(add + place, mask=inside, other=0.0).to(tl.float32)).to(total.dtype)
        tl.store(summed + place, total, mask=inside)
        wide = total.to(tl.float32)  # the sum as it is stored, rounded
    unit = wide * tl.rsqrt(tl.sum(wide * wide, 0) / HIDDEN + eps)
    tl.store(normed + place, weigh(unit, w, total, OFFSET, WIDE), mask=inside)
