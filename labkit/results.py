"""Recorded measurements: data/results/<device>/<name>.json, and the badge that says where a figure is from.

A record holds the figures with every repeat and what is needed to repeat them: versions, command line,
commit, date and device. A notebook shows recorded figures beside its own; the badge keeps them apart.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from labkit import paths
from labkit.errors import LabkitError

MEASURED_HERE = "measured here"


def record(
    name: str, figures: dict[str, Any], *, device_slug: str | None = None, device: str | None = None
) -> Path:
    """Write figures as data/results/<device_slug>/<name>.json and return that path.

    Args:
        name: letters, digits, dots, hyphens and underscores, e.g. "profile".
        figures: plain values, dataclasses, tuples, tensors and arrays, nested as you like. Keep every repeat.
        device_slug: the folder; taken from the device when None.
        device: "cuda" or "cpu"; None means the GPU if there is one.

    Raises:
        LabkitError: the name is not a plain file name, or a figure is NaN, infinite or of an unknown kind.
    """
    _check_name(name)
    hardware = device_name(device)
    slug = device_slug or slugify(hardware)
    _check_name(slug)
    plain = to_plain(figures)
    entry = {
        "name": name,
        "device": hardware,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "command": " ".join([_program(), *sys.argv[1:]]),
        **_commit(),
        "versions": versions(),
        "figures": plain,
    }
    path = paths.results() / slug / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".json.partial")
    partial.write_text(json.dumps(entry, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    partial.replace(path)  # a reader never finds half a file
    return path


def load(name: str, device_slug: str = "nvidia-h200") -> dict[str, Any] | None:
    """The recorded entry, or None when nothing was recorded on that device.

    Its numbers are under "figures", and "badge" says where they are from.
    """
    _check_name(name)
    _check_name(device_slug)
    path = paths.results() / device_slug / f"{name}.json"
    if not path.is_file():
        return None
    try:
        entry = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise LabkitError(
            f"The record {name!r} of {device_slug} is not valid JSON ({error}).",
            f"Restore it from git, or record it again with `labkit bench {name}`.",
        ) from None
    return {**entry, "badge": badge(entry)}


def badge(entry: dict[str, Any] | None = None) -> str:
    """Where a figure comes from: "measured here", or "recorded on NVIDIA H200, 2026-11-30" for an entry."""
    return MEASURED_HERE if entry is None else f"recorded on {entry['device']}, {entry['date']}"


def device_name(device: str | None = None) -> str:
    """The hardware in words: the GPU's name, or "CPU " and the processor's."""
    import torch

    kind = torch.device(device).type if device else ("cuda" if torch.cuda.is_available() else "cpu")
    if kind == "cuda":
        return str(torch.cuda.get_device_name(device if device and ":" in device else None))
    return f"CPU {_processor()}" if kind == "cpu" else kind.upper()


def slugify(text: str) -> str:
    """A folder name from a device's: "NVIDIA H200" gives "nvidia-h200"."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "unknown"


def versions() -> dict[str, str | None]:
    """Versions of what decides a timing: Python, libraries, CUDA and its driver. None: not installed."""
    import torch

    found: dict[str, str | None] = {"python": platform.python_version(), "cuda": torch.version.cuda}
    for package in ("labkit", "torch", "transformers", "triton", "bitsandbytes", "numpy"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    found["driver"] = _driver() if torch.cuda.is_available() else None
    return found


def to_plain(value: Any) -> Any:
    """JSON's own types from dataclasses, mappings, sequences, tensors, arrays and paths.

    Raises:
        LabkitError: a NaN or an infinity (neither is a figure), or a type that has no plain form.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            raise LabkitError(
                "A figure to record is NaN or infinite.", "Leave it out, or record None with a reason."
            )
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if hasattr(value, "tolist"):  # torch tensors, numpy arrays and numpy's numbers
        return to_plain(value.tolist())
    if isinstance(value, Path):
        return value.name
    raise LabkitError(
        f"A {type(value).__name__} cannot be recorded.", "Give numbers, text, lists, dicts or dataclasses."
    )


def _program() -> str:
    """How this program was started, without the path to it."""
    name = Path(sys.argv[0]).name
    return "python -m labkit" if name == "__main__.py" else name


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise LabkitError(
            f"{name!r} cannot name a record.", "Use letters, digits, dots, hyphens and underscores."
        )


def _processor() -> str:
    """The processor's own name where the system tells it, else its architecture."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _driver() -> str | None:
    try:
        import pynvml

        pynvml.nvmlInit()
        try:
            return str(pynvml.nvmlSystemGetDriverVersion())
        finally:
            pynvml.nvmlShutdown()
    except Exception:  # a missing or broken NVML only costs this one line of the record
        return None


def _commit() -> dict[str, Any]:
    """The commit, and whether the tree differs from it (recorded results themselves do not count).

    A copied tree has no commit to read, or that of where it was copied to: LABKIT_COMMIT then names it.
    """
    if named := os.environ.get("LABKIT_COMMIT"):
        return {"commit": named, "dirty": None}

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", *arguments], cwd=paths.root(), capture_output=True, text=True, timeout=20, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    head = git("rev-parse", "HEAD")
    if head is None:
        return {"commit": None, "dirty": None}
    changes = git("status", "--porcelain", "--", ".", ":(exclude)data/results")
    return {"commit": head, "dirty": None if changes is None else bool(changes)}
