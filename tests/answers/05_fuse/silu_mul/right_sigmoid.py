# With tl.sigmoid, ups first.
import triton
import triton.language as tl


@triton.jit
def silu_mul(gate_up, out, COLUMNS: tl.constexpr, TILE: tl.constexpr):
    row = tl.program_id(0)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = column < COLUMNS
    first = gate_up + row * 2 * COLUMNS
    gate = tl.load(first + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(first + COLUMNS + column, mask=inside, other=0.0).to(tl.float32)
    result = up * (gate * tl.sigmoid(gate))
    tl.store(out + row * COLUMNS + column, result, mask=inside)
