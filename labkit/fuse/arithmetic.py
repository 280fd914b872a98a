"""What fusion can gain, in plain numbers: bytes moved, kernels launched, and the bound of a speedup.

An unfused operation reads its inputs from memory and writes its result there, whoever wants it next. A fused kernel
reads what comes from outside once and writes what leaves once; what lies between stays in registers. The FLOPs
are the same, so the arithmetic intensity rises by the factor by which the bytes fall.

Sources: Amdahl 1967 (the speedup of a part); Williams et al. 2009, "Roofline"; Dao et al. 2022, "FlashAttention"
(the bytes of attention); Ivanov et al. 2021, "Data movement is all you need" (transformers).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from labkit.errors import LabkitError
from labkit.profile.shape import Shape


@dataclass(frozen=True)
class Traffic:
    """One operation of a layer, done apart and done fused.

    Attributes:
        name: of the operation.
        flops: additions, multiplications and special functions, counted as one each.
        unfused, fused: bytes of activations read and written.
        kernels: launches unfused, and fused.
    """

    name: str
    flops: int
    unfused: int
    fused: int
    kernels: tuple[int, int]


def speedup(shares: Sequence[float], factors: Sequence[float]) -> float:
    """Amdahl's law: how much faster the whole gets when parts of it do.

    Args:
        shares: of the time, of each part; what is left to 1 stays as it is.
        factors: by which each part gets faster; infinity for a part that vanishes.

    Raises:
        LabkitError: shares below 0 or above 1 in all, factors that are not positive, or not one for each share.
    """
    rest = 1.0 - math.fsum(shares)
    if len(shares) != len(factors) or rest < -1e-9 or min(shares, default=0) < 0:
        raise LabkitError(
            f"Shares {list(shares)} with {len(factors)} factors are no parts of one whole.",
            "Give shares that sum to at most 1, and one factor for each.",
        )
    if not all(factor > 0 for factor in factors):
        raise LabkitError(f"The factors are {list(factors)}.", "Give positive ones.")
    left = max(0.0, rest) + math.fsum(share / factor for share, factor in zip(shares, factors, strict=True))
    return 1 / left if left > 0 else math.inf


def bound(share: float) -> float:
    """Amdahl's bound: the speedup of the whole if a share of its time vanished."""
    return speedup([share], [math.inf])


def norm_bytes(tokens: int, hidden: int, element: int, *, fused: bool) -> int:
    """Residual addition and RMSNorm [B].

    Unfused two kernels: the addition reads two arrays and writes the sum; the norm reads the sum and the weight and
    writes the result. Fused one: reads two arrays and the weight, writes the sum and the result.
    """
    arrays = 4 if fused else 5
    return (arrays * tokens + 1) * hidden * element


def gated_bytes(tokens: int, intermediate: int, element: int, *, fused: bool) -> int:
    """silu(gate) · up [B]. Unfused silu is written and read again: five numbers a result instead of three."""
    return (3 if fused else 5) * tokens * intermediate * element


def attention_bytes(tokens: int, heads: int, kv_heads: int, dim: int, element: int, *, fused: bool) -> int:
    """Attention of a prompt to itself [B].

    Unfused three kernels: the product of queries and keys writes a score for each pair of tokens, softmax reads them
    and writes weights, a second product reads these and the values. Fused the scores never leave the processor.
    (Half of the pairs are masked; unfused code computes and moves them all the same.)
    """
    outside = 2 * tokens * (heads + kv_heads) * dim
    scores = 0 if fused else 4 * heads * tokens * tokens
    return (outside + scores) * element


def layer_traffic(shape: Shape, tokens: int, element: int) -> list[Traffic]:
    """The operations of a Llama-like layer that fusion changes, for one prompt of `tokens` tokens.

    Projections are left out: their weights are read either way. Kernels are counted as transformers' modules launch
    them in half precision: an RMSNorm in 7 steps (two casts among them), rotary positions in 5 for queries and for
    keys each, attention in 3 (it writes its scores), or the one kernel of labkit.
    """
    pairs = tokens * (tokens + 1) // 2
    width = (shape.heads + shape.kv_heads) * shape.head_dim
    return [
        Traffic(
            "residual + norm (twice)", 2 * 6 * tokens * shape.hidden,
            2 * norm_bytes(tokens, shape.hidden, element, fused=False),
            2 * norm_bytes(tokens, shape.hidden, element, fused=True), (16, 2),
        ),
        Traffic(
            "rotary positions, cache", 3 * tokens * width,
            # half turned, two products, sum, and a copy into the cache; fused: read once, written once
            (9 * width + 2 * 2 * shape.kv_heads * shape.head_dim) * tokens * element,
            (2 * width + 2 * shape.kv_heads * shape.head_dim) * tokens * element, (12, 1),
        ),
        Traffic(
            "attention", 4 * shape.heads * shape.head_dim * pairs + 5 * shape.heads * pairs,
            attention_bytes(tokens, shape.heads, shape.kv_heads, shape.head_dim, element, fused=False),
            attention_bytes(tokens, shape.heads, shape.kv_heads, shape.head_dim, element, fused=True), (3, 1),
        ),
        Traffic(
            "SiLU · up", 5 * tokens * shape.intermediate,
            gated_bytes(tokens, shape.intermediate, element, fused=False),
            gated_bytes(tokens, shape.intermediate, element, fused=True), (2, 1),
        ),
    ]  # fmt: skip


def layer_weights(shape: Shape, element: int) -> int:
    """Bytes of the matrices of one layer, which a pass reads whether it is fused or not."""
    return (shape.attention_matrix + shape.mlp_matrix) * element


def launched(kernels: int, launch: float, kernel: float) -> float:
    """Seconds of a step of so many kernels: the host starts one in `launch` [s], the device runs it in `kernel` [s].

    Host and device work at the same time. The slower of the two sets the pace, and the faster one's last or first
    piece comes on top.
    """
    if kernels < 1:
        raise LabkitError(f"A step of {kernels} kernels takes no time.", "Give at least one.")
    return launch + (kernels - 1) * max(launch, kernel) + kernel


def timeline(
    kernels: int, launch: float, kernel: float
) -> tuple[list[tuple[str, float, float]], list[tuple[float, float]]]:
    """The same step as events: the host's launches (name, start, end) and the device's kernels (start, end) [s]."""
    host = [("launch", i * launch, (i + 1) * launch) for i in range(kernels)]
    device: list[tuple[float, float]] = []
    for _, _, ready in host:
        start = max(ready, device[-1][1] if device else 0.0)
        device.append((start, start + kernel))
    return host, device
