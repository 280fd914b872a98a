"""The Triton kernel of the gated activation; labkit/kernels/gated.py explains and launches it."""

# mypy: allow-untyped-defs, allow-incomplete-defs

import triton
import triton.language as tl


@triton.jit
def activate(x, ACTIVATION: tl.constexpr):
    """silu, gelu or gelu_tanh of float32 x. An exponential that overflows gives 0, the limit of both sigmoids."""
    if ACTIVATION == "silu":
        x = x / (1 + tl.exp(-x))
    elif ACTIVATION == "gelu":
        x = 0.5 * x * (1 + tl.erf(x * 0.7071067811865476))
    else:  # (1 + tanh u) / 2 is the sigmoid of 2u, which loses no digits to cancellation; 2·sqrt(2/π) = 1.5957…
        tl.static_assert(ACTIVATION == "gelu_tanh", "unknown activation")
        x = x / (1 + tl.exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)))
    return x


@triton.jit
def gated_kernel(gate_up, out, COLUMNS: tl.constexpr, TILE: tl.constexpr, ACTIVATION: tl.constexpr,
                 PDL: tl.constexpr):  # fmt: skip
    """TILE results of one token. The programs of a token follow one another, so that memory is read in order."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    program = tl.program_id(0)
    tiles: tl.constexpr = (COLUMNS + TILE - 1) // TILE
    token = (program // tiles).to(tl.int64)
    column = program % tiles * TILE + tl.arange(0, TILE)
    inside = column < COLUMNS
    gate = gate_up + token * (2 * COLUMNS) + column
    g = tl.load(gate, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate + COLUMNS, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + token * COLUMNS + column, activate(g, ACTIVATION) * up, mask=inside)
