"""The embedded models, the notebooks, and what each part of a notebook will do on this machine."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit import paths
from labkit.doctor.findings import Finding, Outlook
from labkit.doctor.hardware import GIB
from labkit.doctor.probing import Facts

SUMS = "SHA256SUMS"
RESTORE = "Restore data/ with `git restore data`, or clone the course again."


@dataclass(frozen=True)
class Part:
    """A part of a notebook that depends on the machine.

    Attributes:
        gpu_gib: free GPU memory that it takes, 0 for none.
        instead: what a reader sees where the machine has not got it.
    """

    name: str
    gpu_gib: float
    instead: str


PARTS: dict[str, tuple[Part, ...]] = {
    "01_profile": (
        Part("labcoder, measured live", 0, ""),
        Part("gaps between kernels on a GPU", 0.5, "the processor's own trace, and the recorded GPU run"),
        Part("labcoder@7b, measured live", 15, "the recorded GPU run"),
    ),
    "02_compress": (
        Part("labcoder in few bits, pruned and distilled, measured live", 0, ""),
        Part("labcoder@7b in few bits, measured live", 40, "the recorded GPU run, where there is one"),
    ),
    "03_batch": (
        Part("labcoder under four schedulers, measured live", 0, ""),
        Part("policies on a virtual clock", 0, ""),
        Part("labcoder@7b, measured live", 20, "the recorded GPU run, where there is one"),
    ),
    "04_cache": (
        Part("labcoder's caches, measured live", 0, ""),
        Part("labcoder@7b's caches, measured live", 24, "the recorded GPU run"),
    ),
    "05_fuse": (
        Part("labcoder unfused and fused, measured live", 0, ""),
        Part("Triton kernels, compiled", 0.5, "Triton's interpreter, which counts their bytes"),
        Part("labcoder@7b with CUDA graphs, measured live", 24, "the recorded GPU run, where there is one"),
    ),
}


def weights() -> Iterator[Finding]:
    """Every embedded file against its checksum."""
    sums = paths.data() / SUMS
    if not sums.is_file():
        yield Finding("embedded models", "broken", f"data/{SUMS} is missing", RESTORE)
        return
    bad = list(damaged(sums))
    count = len(sums.read_text(encoding="utf-8").splitlines())
    if bad:
        yield Finding("embedded models", "broken", "; ".join(bad), RESTORE)
    else:
        yield Finding("embedded models", "ok", f"all {count} files are there, their checksums right")


def damaged(sums: Path) -> Iterator[str]:
    """What is wrong with the files that a SHA256SUMS lists, in words. Paths are relative to its folder."""
    for line in sums.read_text(encoding="utf-8").splitlines():
        wanted, _, name = line.partition("  ")
        path = sums.parent / name
        if not path.is_file():
            yield f"data/{name} is missing"
        elif hashlib.sha256(path.read_bytes()).hexdigest() != wanted:
            yield f"data/{name} has changed"


def model(facts: Facts) -> list[Finding]:
    """Whether labcoder really loads and predicts."""
    found = facts["labcoder"]
    if "error" in found:
        return [Finding("labcoder", "broken", f"does not run: {found['error']}", RESTORE)]
    size = found["weight_bytes"] / 1e6
    return [Finding("labcoder", "ok", f"loads and predicts ({size:.0f} MB in memory)")]


def notebooks_built() -> Finding:
    """The learner's notebooks are where they belong."""
    names = [path.stem for path in sorted(paths.notebooks().glob("[0-9][0-9]_*.ipynb"))]
    if not names:
        return Finding(
            "notebooks", "broken", "notebooks/ is empty", "Restore it with `git restore notebooks`."
        )
    return Finding("notebooks", "ok", ", ".join(names))


def outlook(facts: Facts) -> Iterator[Outlook]:
    """For each notebook that has exercises: its exercises, then each part that depends on the machine."""
    notebooks: dict[str, dict[str, int]] = facts["exercises"].get("notebooks", {})
    gpus: list[dict[str, Any]] = facts["torch"].get("devices", [])
    free = max((entry.get("free", 0) / GIB for entry in gpus if not entry["error"]), default=0.0)
    for notebook, count in notebooks.items():
        plain = count["all"] - count["cuda"]
        yield Outlook(notebook, f"{plain} exercises", "run", "need no GPU")
        if count["cuda"]:
            name, why = (
                f"{count['cuda']} exercises on a GPU",
                "there is a GPU" if gpus else "no GPU to verify on",
            )
            yield Outlook(notebook, name, "run" if gpus else "be skipped", why)
        for part in PARTS.get(notebook, ()):
            yield expected(notebook, part, free)


def expected(notebook: str, part: Part, free: float) -> Outlook:
    """What one part will do, given the free GPU memory in GiB (0: no GPU)."""
    if part.gpu_gib == 0:
        if free:
            return Outlook(notebook, part.name, "run", "on the GPU")
        return Outlook(notebook, part.name, "run slower", "on the processor")
    if free >= part.gpu_gib:
        return Outlook(notebook, part.name, "run", f"{free:.0f} GiB of GPU memory free")
    short = f"takes {part.gpu_gib:g} GiB of GPU memory, {free:.0f} free" if free else "no GPU"
    return Outlook(notebook, part.name, "be skipped", f"{short}; shown instead: {part.instead}")
