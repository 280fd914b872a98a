"""Matrix products of few rows, with what follows them (reference only)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    add: Tensor | None = None,
    activation: str | None = None,
    splits: int | None = None,
) -> Tensor:
    """x [T, K] · weight [N, K]ᵀ + bias, then the activation, then add [T, N]."""
    out = F.linear(x, weight, bias)
    if activation is not None:
        out = F.gelu(out, approximate="tanh" if activation == "gelu_tanh" else "none")
    return out if add is None else out + add
