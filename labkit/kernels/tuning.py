"""Tuned configurations of kernels: what was fastest on a device for an operation, a dtype and a shape.

A kernel's tile sizes decide whether all of a GPU's memory channels work all the time, and the best ones differ
from shape to shape for reasons that no formula catches. So they are timed once and kept in a file of the
repository, data/tuning/<device>.json, one entry a line of the form

    "linear16 bfloat16 4096x11008": {"rows": 64, "tile": 128, …, "seconds": 2.1e-05}

Without a file or an entry a kernel uses its own defaults; nothing is ever timed unasked.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import torch

from labkit import paths
from labkit.errors import LabkitError

Entry = Mapping[str, Any]


class Timing(Protocol):
    """One function's repeats; the middle one counts [s]."""

    @property
    def median(self) -> float: ...


class Timer(Protocol):
    """What times the candidates side by side: `labkit.timing.compare`, which lies above this room."""

    def __call__(
        self, fns: dict[str, Callable[..., object]], *, device: torch.device | str | None
    ) -> Mapping[str, Timing]: ...


def key(op: str, dtype: torch.dtype, shape: Sequence[int]) -> str:
    """The name of an entry: "linear1 bfloat16 12288x4096"."""
    return f"{op} {str(dtype).removeprefix('torch.')} {'x'.join(map(str, shape))}"


def device_name(device: torch.device) -> str:
    """The hardware that an entry is about: the GPU's name, or the kind of device elsewhere."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type.upper()


def path(name: str) -> Path:
    """The file of a device: "NVIDIA H200" gives data/tuning/nvidia-h200.json."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "unknown"
    return paths.data() / "tuning" / f"{slug}.json"


def look_up(device: torch.device, op: str, dtype: torch.dtype, shape: Sequence[int]) -> Entry | None:
    """The entry for this device, or None: then a kernel takes its defaults. The file is read once a process."""
    return _read(path(device_name(device))).get(key(op, dtype, shape))


def save(name: str, found: Mapping[str, Entry]) -> Path:
    """Add entries to a device's file (the new one wins), and use them from now on in this process.

    Kernels keep what they looked up: forget it there too (`linear.forget`), or start a new process.

    Args:
        name: the device's, as `device_name` gives it.
        found: entries by `key`.
    """
    target = path(name)
    entries = {**_read(target), **found}
    lines = ",\n".join(
        f"  {json.dumps(k)}: {json.dumps(entries[k], allow_nan=False)}" for k in sorted(entries)
    )
    head = f' "device": {json.dumps(name)},\n "versions": {json.dumps(_versions())},\n "entries": {{\n'
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(".json.partial")
    partial.write_text(f"{{\n{head}{lines}\n }}\n}}\n", encoding="utf-8")
    partial.replace(target)  # a reader never finds half a file
    _read.cache_clear()
    return target


def fastest(
    candidates: Mapping[str, Callable[[], object]], device: torch.device, timer: Timer
) -> tuple[str, dict[str, float]]:
    """The name of the quickest candidate and the seconds of each, all timed in one alternating run.

    Raises:
        LabkitError: no candidates, or a time that is not a positive number.
    """
    if not candidates:
        raise LabkitError("There is nothing to tune: no candidate runs here.", "Give candidates that fit.")
    seconds = {name: took.median for name, took in timer(dict(candidates), device=device).items()}
    for name, took in seconds.items():
        if not took > 0:  # a NaN is not positive either
            raise LabkitError(f"Candidate {name} took {took} s.", "Check the timer and its clock.")
    return min(seconds, key=lambda name: seconds[name]), seconds


@cache
def _read(file: Path) -> dict[str, Entry]:
    """Entries by key; none where there is no file."""
    if not file.is_file():
        return {}
    try:
        entries = json.loads(file.read_text(encoding="utf-8"))["entries"]
        if not all(isinstance(entry, dict) for entry in entries.values()):
            raise TypeError("an entry is not an object")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LabkitError(
            f"The tuning file {file.name} cannot be read ({error!r}).",
            "Restore it from git, or delete it: kernels then use their defaults.",
        ) from None
    return dict(entries)


def _versions() -> dict[str, str | None]:
    """What compiled the candidates: a newer compiler may prefer others."""
    found: dict[str, str | None] = {"torch": torch.__version__, "triton": None}
    try:
        found["triton"] = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        pass
    return found
