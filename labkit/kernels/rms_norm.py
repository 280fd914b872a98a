"""RMSNorm, with the residual addition before it (reference only)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Norm:
    """An RMSNorm as data: weight [dim], eps, and where it rounds."""

    weight: Tensor
    eps: float
    offset: float = 0.0
    wide: bool = False


def rms_norm(
    x: Tensor,
    weight: Tensor,
    eps: float,
    *,
    add: Tensor | None = None,
    offset: float = 0.0,
    wide: bool = False,
) -> tuple[Tensor, Tensor]:
    """(normed, summed) of x [T, H]: summed = x + add, statistics in float32."""
    summed = x if add is None else x + add
    unit = summed.float()
    unit = unit * torch.rsqrt(unit.pow(2).mean(-1, keepdim=True) + eps)
    if wide:
        return (unit * (offset + weight.float())).to(x.dtype), summed
    return (offset + weight if offset else weight) * unit.to(x.dtype), summed
