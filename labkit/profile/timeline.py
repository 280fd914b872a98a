"""Reading a profiler's timeline: kernels, copies, waits, and the gaps in which the device had nothing to do.

The source is torch.profiler's Chrome trace, whose categories (`kernel`, `gpu_memcpy`, `cuda_runtime`,
`cpu_op`, …) have stayed the same over years of versions. On a GPU, kernels run on the device's own
timeline and a gap means that the host did not feed it in time. On a CPU the operators are the kernels, and
the gap between two is the Python that runs between them.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

WINDOW = "labkit.window"  # around the traced program and the synchronisation that closes it
PROGRAM = "labkit.program"  # around the program alone

# host calls that return only when the device has caught up
_WAITS = frozenset(
    f"{prefix}{name}"
    for prefix, names in {
        "cuda": ("DeviceSynchronize", "StreamSynchronize", "EventSynchronize", "Memcpy"),
        "cu": ("CtxSynchronize", "StreamSynchronize", "EventSynchronize"),
        "hip": ("DeviceSynchronize", "StreamSynchronize", "EventSynchronize"),
    }.items()
    for name in names
)
# operators that hand a device's result to the host: on a GPU each of them waits, on a CPU it shows where
_FETCHES = frozenset(
    f"aten::{name}" for name in ("_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2")
)
_LAUNCHES = (
    "cudaLaunchKernel",
    "cuLaunchKernel",
    "cudaGraphLaunch",
    "hipLaunchKernel",
    "hipExtModuleLaunchKernel",
)
_COPIES = frozenset({"gpu_memcpy", "gpu_memset"})


@dataclass(frozen=True)
class Span:
    """Something that lasted: its start after the window's [s], its length [s], and bytes if it moved any."""

    name: str
    start: float
    seconds: float
    bytes: int = 0

    @property
    def end(self) -> float:
        """When it ended, after the window's start [s]."""
        return self.start + self.seconds


@dataclass(frozen=True)
class Gap:
    """Idle time of the device [s], what ran before and after, and what the host was doing meanwhile.

    `cause` is "waiting" if the host waited for the device at the gap's start (a synchronisation drained the
    queue), "python" if no operator was running for most of it, else the operator that ran longest.
    """

    start: float
    seconds: float
    before: str
    after: str
    cause: str


@dataclass(frozen=True)
class Timeline:
    """Spans by kind, inside the window, in order of their start."""

    window: float
    kernels: tuple[Span, ...]
    copies: tuple[Span, ...]
    waits: tuple[Span, ...]
    operators: tuple[Span, ...]
    annotations: tuple[Span, ...]
    launches: int


def read(events: Iterable[dict[str, Any]], *, on_gpu: bool) -> Timeline:
    """Sort a Chrome trace's events into a Timeline; only what lies in the window's annotation counts."""
    complete = [event for event in events if event.get("ph") == "X"]
    ours = {event["name"]: event for event in complete if event.get("cat") == "user_annotation"}
    window, program = ours[WINDOW], ours[PROGRAM]
    begin, length, thread = float(window["ts"]), float(window["dur"]), window["tid"]
    program_end = (float(program["ts"]) + float(program["dur"]) - begin) * 1e-6

    def spans(chosen: Iterable[dict[str, Any]]) -> tuple[Span, ...]:
        made = []
        for event in chosen:
            start = float(event["ts"]) - begin
            if -1.0 <= start <= length:  # a microsecond of rounding
                size = int(event.get("args", {}).get("bytes", 0) or 0)
                made.append(Span(event["name"], max(0.0, start) * 1e-6, float(event["dur"]) * 1e-6, size))
        return tuple(sorted(made, key=lambda span: (span.start, -span.seconds)))

    by_kind: dict[str, list[dict[str, Any]]] = {}
    for event in complete:
        by_kind.setdefault(event.get("cat", ""), []).append(event)
    host = by_kind.get("cuda_runtime", []) + by_kind.get("cuda_driver", []) if on_gpu else []
    operators = [event for event in by_kind.get("cpu_op", []) if event["tid"] == thread]
    outer = outermost(spans(operators))
    if on_gpu:
        kernels = spans(by_kind.get("kernel", []))
        copies = spans(event for kind in _COPIES for event in by_kind.get(kind, []))
        waits = spans(event for event in host if event["name"] in _WAITS)
        waits = _with_blocking_copies(waits, spans(_blocking_copies(host, by_kind.get("gpu_memcpy", []))))
    else:
        kernels = outer
        copies = outermost(spans(event for event in operators if event["name"] == "aten::copy_"))
        waits = outermost(spans(event for event in operators if event["name"] in _FETCHES))
    launched = [event for event in host if event["name"].startswith(_LAUNCHES)]
    annotations = [
        event
        for event in by_kind.get("user_annotation", [])
        if event["name"] not in (WINDOW, PROGRAM) and event["tid"] == thread
    ]
    return Timeline(
        window=length * 1e-6,
        kernels=kernels,
        copies=copies,
        waits=tuple(span for span in waits if span.start <= program_end),
        operators=outer,
        annotations=spans(annotations),
        launches=len(spans(launched)) if on_gpu else len(outer),
    )


def outermost(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Spans that lie in no other (aten::linear, not the aten::addmm inside it). Sorted by start."""
    kept: list[Span] = []
    end = -1.0
    for span in spans:
        if span.start >= end - 1e-9:
            kept.append(span)
            end = span.end
    return tuple(kept)


def gaps(timeline: Timeline, *, on_gpu: bool, shortest: float = 0.0) -> tuple[Gap, ...]:
    """Idle stretches of the device in the window, before its first and after its last kernel included."""
    busy = sorted([*timeline.kernels, *timeline.copies], key=lambda span: span.start)
    if not on_gpu:
        busy = list(timeline.kernels)  # on a CPU a copy is an operator already counted
    found = []
    end, before = 0.0, "start"
    for span in [*busy, Span("end", timeline.window, 0.0)]:
        if span.start - end > shortest:
            cause = _cause(timeline, end, span.start) if on_gpu else "python"
            found.append(Gap(end, span.start - end, before, span.name, cause))
        if span.end >= end:
            end, before = span.end, span.name
    return tuple(found)


def _cause(timeline: Timeline, start: float, end: float) -> str:
    """What the host did while the device was idle from `start` to `end`."""
    # a wait that ends inside the gap (or just before it, as the two clocks agree to microseconds only):
    # the queue was empty because the host had stopped
    if any(wait.start <= start + 1e-6 and start - 2e-5 <= wait.end <= end for wait in timeline.waits):
        return "waiting"
    inside: dict[str, float] = {}
    first = max(0, bisect.bisect_right(timeline.operators, start, key=lambda span: span.start) - 1)
    last = bisect.bisect_left(timeline.operators, end, key=lambda span: span.start)
    for span in timeline.operators[first:last]:
        overlap = min(span.end, end) - max(span.start, start)
        if overlap > 0:
            inside[span.name] = inside.get(span.name, 0.0) + overlap
    if sum(inside.values()) < (end - start) / 2:
        return "python"
    return max(inside, key=lambda name: inside[name])


def _blocking_copies(
    host: Iterable[dict[str, Any]], copies: Iterable[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Asynchronous in name only: a copy to pageable host memory returns when the data is there."""
    blocking = {
        event["args"].get("correlation")
        for event in copies
        if "DtoH" in event["name"] and "Pageable" in event["name"]
    }
    return [
        event
        for event in host
        if event["name"].startswith(("cudaMemcpyAsync", "hipMemcpyAsync"))
        and event.get("args", {}).get("correlation") in blocking
    ]


def _with_blocking_copies(waits: Sequence[Span], copies: Iterable[Span]) -> tuple[Span, ...]:
    """Blocking copies as waits; one that the next synchronisation follows at once is part of it (`.cpu()`)."""
    merged = list(waits)
    for copy in copies:
        index = next((i for i, wait in enumerate(merged) if 0 <= wait.start - copy.end < 5e-5), None)
        if index is None:
            merged.append(copy)
        else:
            merged[index] = Span(merged[index].name, copy.start, merged[index].end - copy.start)
    return tuple(sorted(merged, key=lambda span: span.start))
