"""What the kernels' launchers ask about a device, and small numbers they share."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

FLOATS = (torch.bfloat16, torch.float16, torch.float32)
"""What the kernels compute with; other dtypes go to the torch references."""


@cache
def available(device: torch.device) -> bool:
    """Whether Triton is installed and compiles for this device: an NVIDIA GPU from Ampere on, or one that says it
    can do as much."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 0):
        return False
    try:
        from labkit.kernels.paged_decode_triton import INTERPRETED
    except ImportError:
        return False
    return not INTERPRETED


def compiles(x: Tensor) -> bool:
    """Whether an elementwise kernel may take x: it is on a GPU that Triton compiles for, in one of FLOATS,
    and needs no gradient, which these kernels do not have."""
    return (
        x.is_cuda
        and x.dtype in FLOATS
        and available(x.device)
        and not (x.requires_grad and torch.is_grad_enabled())
    )


@cache
def starts_early(device: torch.device) -> bool:
    """Whether the device knows programmatic dependent launch: Hopper and later."""
    return available(device) and torch.cuda.get_device_capability(device) >= (9, 0)


@cache
def knows_fp8(device: torch.device) -> bool:
    """Whether the device converts fp8 (e4m3): Ada, Hopper and later."""
    return available(device) and torch.cuda.get_device_capability(device) >= (8, 9)


def dependent(pdl: bool) -> dict[str, Any]:
    """Launch options of programmatic dependent launch; none without it, since older Tritons know no such option."""
    return {"launch_pdl": True} if pdl else {}


@cache
def processors(device: torch.device) -> int:
    """Streaming multiprocessors of a GPU; a small number elsewhere."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


def power(n: int) -> int:
    """The smallest power of 2 that is at least n (1 for n < 2)."""
    return 1 << max(0, n - 1).bit_length()
