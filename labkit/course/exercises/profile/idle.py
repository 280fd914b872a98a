"""Exercise: the share of time in which a device with several streams does nothing."""

import random
from collections.abc import Callable, Sequence
from typing import Any

from labkit.course.exercise import Exercise
from labkit.course.exercises.profile.values import judge

Kernel = tuple[int, float, float]  # stream, start, end in microseconds
TICK = 0.25  # microseconds; a power of two, so that sums are exact


def idle_share(kernels: Sequence[Kernel], start: float, end: float) -> float:
    """Share of [start, end] in which no stream runs a kernel (labkit's own answer)."""
    reached, idle = start, 0.0
    for _, begin, stop in sorted(kernels, key=lambda kernel: kernel[1]):
        idle += max(0.0, min(begin, end) - reached)
        reached = max(reached, min(stop, end))
    return (idle + end - reached) / (end - start)


def _check_idle(fn: Callable, rng: random.Random) -> None:
    window = rng.randint(50, 90), rng.randint(400, 500)
    _judge_idle(fn, _one_stream(rng, *window), *window)
    first, last = window
    middle = (first + last) // 2
    # a long kernel on one stream, short ones under it on another, then a gap
    nested = [
        (0, first, middle),
        (1, first + 10, first + 20),
        (1, first + 40, middle - 30),
        (0, middle + 40, last),
    ]
    _judge_idle(fn, nested, *window)
    for streams in (2, 3):
        kernels = [kernel for stream in range(streams) for kernel in _one_stream(rng, *window, stream=stream)]
        rng.shuffle(kernels)
        _judge_idle(fn, kernels, *window)
    _judge_idle(fn, [(0, first - 40, first + 30), (0, last - rng.randint(10, 40), last + 60)], *window)
    _judge_idle(fn, [(0, first - 40, first - 5), (1, last + 5, last + 60)], *window)
    _judge_idle(fn, [(0, first - rng.randint(5, 40), last + rng.randint(5, 40))], *window)
    _judge_idle(fn, [], *window)


def _one_stream(rng: random.Random, first: int, last: int, stream: int = 0) -> list[tuple[int, int, int]]:
    """Kernels one after another with gaps, the first and the last gap touching the window's ends."""
    kernels = []
    now = first + rng.randint(5, 20)
    while now < last - 80:
        length = rng.randint(10, 45)
        kernels.append((stream, now, now + length))
        now += length + rng.randint(15, 60)
    return kernels


def _judge_idle(fn: Callable, ticks: list[tuple[int, int, int]], first: int, last: int) -> None:
    """The input is drawn in ticks and handed over in microseconds, which are no whole numbers."""
    busy = [False] * (last - first)  # one flag a tick: slow, and hard to get wrong
    for _, begin, stop in ticks:
        for tick in range(max(begin, first), min(stop, last)):
            busy[tick - first] = True
    share = 1 - sum(busy) / len(busy)
    kernels: list[Kernel] = [(stream, begin * TICK, stop * TICK) for stream, begin, stop in ticks]
    start, end = first * TICK, last * TICK
    given: dict[str, Any] = {
        "kernels": str(sorted(kernels, key=lambda kernel: kernel[1])[:12]),
        "start": start,
    }
    given |= {"end": end, "count": len(kernels), "streams": len({stream for stream, _, _ in kernels})}
    inside = all(start <= begin and stop <= end for _, begin, stop in kernels)
    typical = _typical(kernels, start, end, share)
    judge(fn(list(kernels), start, end), share, "share" if inside else "no_clip", typical, **given)


def _typical(kernels: list[Kernel], start: float, end: float, share: float) -> dict[str, float]:
    span = end - start
    ordered = sorted(kernels, key=lambda kernel: kernel[1])
    pairs = list(zip(ordered, ordered[1:], strict=False))
    between = sum(max(0, later[1] - earlier[2]) for earlier, later in pairs)
    lengths = sum(stop - begin for _, begin, stop in kernels)
    clipped = sum(max(0, min(stop, end) - max(begin, start)) for _, begin, stop in kernels)
    ends = [start] + [max(stop for _, _, stop in ordered[: i + 1]) for i in range(len(ordered))]
    merged = sum(max(0, kernel[1] - reached) for kernel, reached in zip(ordered[1:], ends[1:], strict=False))
    streams = max(1, len({stream for stream, _, _ in kernels}))
    edges = (ordered[0][1] - start + end - ordered[-1][2]) if ordered else span
    return {
        "percent": 100 * share,
        "busy": 1 - share,
        "sum_of_lengths": 1 - clipped / span,
        "no_clip": 1 - lengths / span,
        "mean_of_streams": 1 - clipped / span / streams,
        "last_end": (between + edges) / span,
        "no_edges": merged / span,
        "microseconds": share * span,
    }


EXERCISES = [
    Exercise(
        name="idle_share",
        notebook="01_profile",
        level="extra",
        points=2,
        minutes=8,
        check=_check_idle,
        reference=idle_share,
    )
]
