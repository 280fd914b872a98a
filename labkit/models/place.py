"""Where a model goes and in what precision, when the caller does not say."""

from __future__ import annotations

import torch

from labkit.errors import LabkitError
from labkit.models.memory import free_bytes, needed_bytes
from labkit.models.presets import PRESETS

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)

ROOM = 1.5
"""A model that "auto" picks leaves half its weights again for caches, batches and captured graphs."""


def resolve_device(device: str | torch.device | None) -> torch.device:
    """The GPU if there is one that CUDA sees, else the CPU; Macs use the CPU.

    Raises:
        LabkitError: a device that does not exist here.
    """
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise LabkitError(f"There is no device {device!r}.", 'Use "cpu" or "cuda".') from error
    if found.type not in ("cpu", "cuda"):
        raise LabkitError(f"labkit does not run on {found.type}.", 'Use "cpu" or "cuda".')
    count = torch.cuda.device_count() if found.type == "cuda" else 1
    if (found.index or 0) >= count:
        if found.type == "cpu" or count == 0:
            remedy = 'Use device="cpu", or leave device out.'
        else:
            remedy = f"Use cuda:0 to cuda:{count - 1}."
        raise LabkitError(
            f"Device {device} was asked for; number of {found.type.upper()} devices here: {count}.", remedy
        )
    if found.type == "cuda" and found.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return found


def resolve_dtype(dtype: str | torch.dtype | None, device: torch.device) -> torch.dtype:
    """bfloat16 on a GPU that has it in hardware, float16 on one that has not, float32 on the CPU.

    Raises:
        LabkitError: not a floating type that weights can be stored in.
    """
    if dtype is None:
        if device.type == "cpu":
            return torch.float32
        native = torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if native else torch.float16
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if found not in FLOATS:
        names = ", ".join(str(one).removeprefix("torch.") for one in FLOATS)
        raise LabkitError(f"Weights cannot be stored as {dtype}.", f"Use one of {names}.")
    return found


def largest_sensible(device: torch.device, dtype: torch.dtype, vocab: int) -> str:
    """What "auto" means here: labcoder@7b or @1b on a GPU with room to work in, else labcoder."""
    if device.type == "cuda":
        for preset in ("7b", "1b"):
            weights = PRESETS[preset].parameters(vocab) * dtype.itemsize
            if needed_bytes(int(weights * ROOM)) <= free_bytes(device):
                return f"labcoder@{preset}"
    return "labcoder"
