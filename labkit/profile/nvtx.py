"""Names on the timeline: NVTX ranges for Nsight Systems, and the command that records them.

Nsight Systems shows what torch.profiler shows and more (the driver, other processes, the network), at less
cost to the program. It is NVIDIA's and a separate installation; `labkit.profile.trace` is the portable way.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch


@contextmanager
def nvtx_range(name: str) -> Iterator[None]:
    """A named range on Nsight's NVTX row; without CUDA it does nothing."""
    if not torch.cuda.is_available():
        yield
        return
    torch.cuda.nvtx.range_push(name)
    try:
        yield
    finally:
        torch.cuda.nvtx.range_pop()


@contextmanager
def annotate(name: str) -> Iterator[None]:
    """A named range for every viewer: NVTX, and torch.profiler's own while it records."""
    recording = (
        torch.autograd.profiler.record_function(name) if torch.autograd._profiler_enabled() else nullcontext()
    )
    with nvtx_range(name), recording:
        yield


def nsys_command(command: str = "python -m labkit bench profile", *, output: str = "profile") -> str:
    """The shell command, broken over lines, that records `command` with Nsight Systems into `output`.nsys-rep.

    It traces CUDA calls, kernels, copies, NVTX ranges and the waits of the operating system. Open the file
    in Nsight Systems, or sum it up with `nsys stats --report cuda_gpu_trace,cuda_api_sum,nvtx_sum`.
    """
    parts = (
        "nsys profile",
        "--trace=cuda,nvtx,osrt,cublas",
        "--cuda-memory-usage=true",
        f"--force-overwrite=true --output={shlex.quote(output)}",
        command,
    )
    return " \\\n    ".join(parts)
