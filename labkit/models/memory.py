"""How much memory a model needs and a device has, worked out before anything is allocated."""

from __future__ import annotations

from pathlib import Path

import psutil
import torch

from labkit.errors import LabkitError
from labkit.models.presets import PRESETS

GIB = 1024**3
OVERHEAD = 1.05
"""Weights plus allocator rounding."""
WORKSPACE = GIB // 2
"""Activations, a short cache and library workspaces."""


def free_bytes(device: torch.device) -> int:
    """Memory that a new model could take: free on the GPU, or available to this process on the host."""
    if device.type == "cuda":
        # what torch has cached but does not use can be given to a new model too
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    return min(psutil.virtual_memory().available, _cgroup_left())


def _cgroup_left() -> int:
    """What a container's limit leaves (Linux cgroup v2), which the host's own figure does not show."""
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    try:
        return int(limit.read_text()) - int(used.read_text())
    except (OSError, ValueError):  # no cgroup v2, or no limit ("max")
        return 1 << 62


def needed_bytes(weights: int) -> int:
    """Memory to load `weights` bytes of weights and run them on a short prompt."""
    return int(weights * OVERHEAD) + WORKSPACE


def require(name: str, weights: int, device: torch.device, dtype: torch.dtype, vocab: int) -> None:
    """Stop here if a model will not fit.

    Args:
        weights: bytes of its weights in `dtype`.
        vocab: tokens of the embedded vocabulary, for the sizes of what is suggested in its place.

    Raises:
        LabkitError: with both figures, and what would fit.
    """
    needed, free = needed_bytes(weights), free_bytes(device)
    if needed <= free:
        return
    precision = str(dtype).removeprefix("torch.")
    raise LabkitError(
        f"{name} needs {needed / GIB:.1f} GiB in {precision}, and {device} has {free / GIB:.1f} GiB free.",
        _what_fits(weights, free, dtype, vocab),
    )


def _what_fits(weights: int, free: int, dtype: torch.dtype, vocab: int) -> str:
    if dtype.itemsize > 2 and needed_bytes(weights * 2 // dtype.itemsize) <= free:
        return 'It fits with dtype="bfloat16".'
    for preset, shape in sorted(PRESETS.items(), key=lambda item: -item[1].parameters(vocab)):
        if needed_bytes(shape.parameters(vocab) * dtype.itemsize) <= free:
            return f"labcoder@{preset} fits; so does labcoder."
    return "labcoder fits almost anywhere; close other programs, or take another device."
