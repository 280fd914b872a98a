"""A device's two ceilings, measured: how fast it reads memory and how fast it multiplies matrices.

Both use random data. Constant data flips fewer transistors, draws less power and lets a GPU clock higher
than any real model will see. The read is a read, not a copy: decoding streams weights in and writes almost
nothing back. It is larger than the cache, and the best of several ways of reading counts, since a ceiling
should not hang on one kernel's quality.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from labkit.errors import LabkitError
from labkit.models.place import resolve_device, resolve_dtype
from labkit.profile.datasheet import Ceilings
from labkit.profile.formulas import dtype_name
from labkit.results import device_name
from labkit.timing import measure

_LEAST_SECONDS = {"cuda": 0.02, "cpu": 0.03}  # a timed call this long drowns the clock's own cost
_MATRICES = {"cuda": (4096, 8192, 16384), "cpu": (512, 1024, 2048, 4096)}
_REPEATS = 7


def cache_bytes(device: torch.device | str | None = None) -> int:
    """The last-level cache [B]: a GPU's L2, or all L3 of the processor (64 MiB where it is not told)."""
    device = resolve_device(device)
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).L2_cache_size)
    shared: dict[str, int] = {}
    for index in Path("/sys/devices/system/cpu").glob("cpu[0-9]*/cache/index*"):
        try:
            if int((index / "level").read_text()) < 3:
                continue
            size = (index / "size").read_text().strip()
            shared[(index / "shared_cpu_list").read_text().strip()] = int(size.rstrip("K")) * 1024
        except (OSError, ValueError):
            continue
    return sum(shared.values()) or 64 * 2**20


def ceilings(device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Ceilings:
    """Measure both ceilings of a device at a dtype. Takes seconds, and a few GB on a GPU.

    Args:
        device: the GPU if there is one when None.
        dtype: of the matrices, and of what is read; what `labkit.load` stores weights in when None.

    Raises:
        LabkitError: no such device, or no matrix product of that dtype on it.
    """
    device = resolve_device(device)
    dtype = resolve_dtype(dtype, device)
    return Ceilings(
        bandwidth=read_bandwidth(device, dtype),
        flops=matmul_flops(device, dtype),
        name=device_name(str(device)),
        source="measured: large reads and matrix products on random data",
        dtype=dtype_name(dtype),
    )


def read_bandwidth(device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> float:
    """Bytes per second of reading a random array larger than the cache, once each call."""
    device = resolve_device(device)
    dtype = resolve_dtype(dtype, device)
    size = _read_size(device)
    width = 16384
    rows = size // (width * dtype.itemsize)
    matrix = _random((rows, width), device, dtype)
    vector = _random((width,), device, dtype)
    # the same bytes as integers are read by a reduction that never converts; whatever numbers they spell,
    # they have to be fetched
    flat = matrix.view(torch.int32).view(-1)
    readers: dict[str, Callable[[], object]] = {
        "matrix times vector": lambda: torch.mv(matrix, vector),
        "sum": lambda: matrix.sum(),
        "maximum of the bits": lambda: flat.amax(),
    }
    moved = matrix.numel() * matrix.element_size()
    return max(moved / _seconds_each(reader, device) for reader in readers.values())


def matmul_flops(device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> float:
    """FLOPs per second of square products of random matrices, at the size where they are fastest."""
    device = resolve_device(device)
    dtype = resolve_dtype(dtype, device)
    best = 0.0
    for n in _MATRICES.get(device.type, _MATRICES["cpu"]):
        a, b = _random((n, n), device, dtype), _random((n, n), device, dtype)
        out = torch.empty(n, n, device=device, dtype=dtype)
        try:
            seconds = _seconds_each(functools.partial(torch.mm, a, b, out=out), device)
        except RuntimeError as error:
            raise LabkitError(
                f"No product of {dtype_name(dtype)} matrices of {n} × {n} ran on {device}: {error}",
                "Choose another dtype, or free memory.",
            ) from error
        best = max(best, 2 * n**3 / seconds)
        if device.type == "cpu" and seconds > 0.1:
            break  # larger ones would only take longer
    return best


def _seconds_each(fn: Callable[[], object], device: torch.device) -> float:
    """Best time of one call, from batches of calls long enough for the clock."""
    once = measure(fn, device=device, warmup=1, repeats=1).best
    least = _LEAST_SECONDS.get(device.type, 0.03)
    calls = max(1, min(64, round(least / max(once, 1e-9))))

    def batch() -> None:
        for _ in range(calls):
            fn()

    return measure(batch, device=device, warmup=1, repeats=_REPEATS).best / calls


def _read_size(device: torch.device) -> int:
    """Bytes to read: well above the cache, well below the free memory."""
    above = 8 * cache_bytes(device)
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        wanted, most = max(2 * 2**30, above), free // 4
    else:
        import psutil

        wanted, most = max(256 * 2**20, above), psutil.virtual_memory().available // 6
    return int(max(64 * 2**20, min(wanted, most)))


def _random(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Normal numbers; drawn in place, since a second copy in float32 would double a large array."""
    tensor = torch.empty(shape, device=device, dtype=dtype)
    generator: Any = torch.Generator(device=device).manual_seed(0)
    return tensor.normal_(generator=generator)
