"""The gated activation of an MLP (reference only)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def gated(gate_up: Tensor, activation: str) -> Tensor:
    """activation(gate) · up of gate_up [T, 2·I], the gate first; "silu", "gelu" or "gelu_tanh"."""
    gate, up = gate_up.chunk(2, -1)
    if activation == "silu":
        return F.silu(gate) * up
    return F.gelu(gate, approximate="tanh" if activation == "gelu_tanh" else "none") * up
