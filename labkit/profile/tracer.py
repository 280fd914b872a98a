"""Trace a piece of work with torch.profiler and say what its timeline shows.

    found = trace(lambda: generate(lm, prompt, 16), lm.device)
    print(found.summary())
    found.export("decode.json")      # open in https://ui.perfetto.dev or chrome://tracing

Recording slows the host down, most of all Python between small operators, so shares are read from the
trace but times are not: the summary puts the untraced time beside the traced one.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from labkit.errors import LabkitError
from labkit.models.place import resolve_device
from labkit.profile import timeline as tl
from labkit.timing import measure, synchronize


@dataclass(frozen=True)
class Trace:
    """One traced run; spans are in seconds after its start. On a CPU its operators are the `kernels`."""

    device: str
    seconds: float
    untraced_seconds: float
    kernels: tuple[tl.Span, ...]
    copies: tuple[tl.Span, ...]
    synchronisations: tuple[tl.Span, ...]
    gaps: tuple[tl.Gap, ...]
    annotations: tuple[tl.Span, ...]
    launches: int
    raw: str = field(repr=False)

    @property
    def idle(self) -> float:
        """Seconds in which no kernel and no copy ran."""
        return sum(gap.seconds for gap in self.gaps)

    @property
    def gap_share(self) -> float:
        """Idle ÷ traced time, 0 to 1."""
        return self.idle / self.seconds

    @property
    def untraced_gap_share(self) -> float | None:
        """Idle share of the untraced run: 1 − busy ÷ untraced time. Kernels on a GPU take their time whether
        recorded or not; operators on a CPU do not, so there it is None."""
        if not self.device.startswith("cuda"):
            return None
        return max(0.0, 1 - self.busy_seconds / self.untraced_seconds)

    @property
    def busy_seconds(self) -> float:
        """Traced time less idle time; overlapping kernels count once."""
        return self.seconds - self.idle

    def top(self, n: int = 5) -> list[tuple[str, int, float]]:
        """The n kernels with the most time: name, count, seconds."""
        sums: dict[str, tuple[int, float]] = {}
        for span in self.kernels:
            count, seconds = sums.get(span.name, (0, 0.0))
            sums[span.name] = (count + 1, seconds + span.seconds)
        ordered = sorted(sums.items(), key=lambda item: -item[1][1])
        return [(name, count, seconds) for name, (count, seconds) in ordered[:n]]

    def causes(self) -> dict[str, float]:
        """Idle seconds by what the host did: "waiting", "python", or "launching" (inside an operator)."""
        sums = {"waiting": 0.0, "python": 0.0, "launching": 0.0}
        for gap in self.gaps:
            sums[gap.cause if gap.cause in sums else "launching"] += gap.seconds
        return sums

    def stages(self) -> dict[str, float]:
        """Seconds under each annotation (`annotate`, NVTX), summed by name in order of first appearance."""
        sums: dict[str, float] = {}
        for span in self.annotations:
            sums[span.name] = sums.get(span.name, 0.0) + span.seconds
        return sums

    def summary(self) -> str:
        """The timeline in words and numbers."""
        from labkit.profile.trace_text import render

        return render(self)

    __repr__ = summary  # the last line of a notebook's cell shows this, not thousands of spans

    def export(self, path: str | Path) -> Path:
        """Write Chrome-trace JSON, which Perfetto and chrome://tracing open."""
        path = Path(path)
        path.write_text(self.raw, encoding="utf-8")
        return path


def trace(fn: Callable[[], object], device: torch.device | str | None = None, *, warmup: int = 1) -> Trace:
    """Run `fn` under torch.profiler and read its timeline.

    Args:
        fn: the work, called `warmup` + 1 times plain and once traced. Keep it short: a few tokens.
        device: where its kernels run; the GPU if there is one when None.

    Raises:
        LabkitError: no such device, another profiler is running, or a GPU's trace came back without kernels.
    """
    device = resolve_device(device)
    on_gpu = device.type == "cuda"
    plain = measure(fn, device=device, warmup=warmup, repeats=1).median
    raw = _record(fn, device, on_gpu)
    found = tl.read(json.loads(raw)["traceEvents"], on_gpu=on_gpu)
    if on_gpu and not found.kernels:
        raise LabkitError(
            "The profiler saw no kernel on the GPU.",
            "Check that the work runs on it and that no other profiler holds it.",
        )
    return Trace(
        device=str(device),
        seconds=found.window,
        untraced_seconds=plain,
        kernels=found.kernels,
        copies=found.copies,
        synchronisations=found.waits,
        gaps=tl.gaps(found, on_gpu=on_gpu),
        annotations=found.annotations,
        launches=found.launches,
        raw=raw,
    )


def _record(fn: Callable[[], object], device: torch.device, on_gpu: bool) -> str:
    """The Chrome trace of one call of fn, as JSON text."""
    from torch.profiler import ProfilerActivity, profile, record_function

    if torch.autograd._profiler_enabled():
        raise LabkitError("A profiler is already running.", "Leave its `with` block before tracing.")
    # Kineto writes its start and stop to stderr unless told to keep quiet before it first starts
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    synchronize(device)
    if on_gpu:  # the first recording of a process sets up CUPTI, which would look like a long gap
        with profile(activities=activities, acc_events=True):
            torch.ones(1, device=device).add_(1)
            synchronize(device)
    with profile(
        activities=activities, acc_events=True
    ) as profiler:  # one cycle; without, torch warns that it keeps one
        with record_function(tl.WINDOW):
            with record_function(tl.PROGRAM):
                fn()
            synchronize(device)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return path.read_text(encoding="utf-8", errors="replace")
