"""Exercise: batches from a stream of arrivals, a largest size and a waiting window."""

import random
from collections.abc import Callable, Sequence
from typing import Any

from labkit.course.exercise import Exercise, expect
from labkit.course.exercises.profile.values import number

Batch = tuple[float, list[int]]  # start [s], requests
TICK = 1 / 64  # seconds; a power of two, so that sums are exact


def form_batches(arrivals: Sequence[float], window: float, max_batch: int) -> list[Batch]:
    """When each batch starts and who is in it (labkit's own answer)."""
    batches: list[Batch] = []
    first = 0
    while first < len(arrivals):
        closes = arrivals[first] + window
        last = first
        while last + 1 < len(arrivals) and last + 1 - first < max_batch and arrivals[last + 1] <= closes:
            last += 1
        full = last + 1 - first == max_batch
        batches.append((arrivals[last] if full else closes, list(range(first, last + 1))))
        first = last + 1
    return batches


def _check_batches(fn: Callable, rng: random.Random) -> None:
    # full before the window is over; then one that waits alone, with another just outside its window
    _judge(fn, _ticks([0, 2, 4, 5, 9, 60, 70, 75]), 10 * TICK, 3)
    _judge(fn, _ticks([0, 16, 20, 30]), 16 * TICK, 8)  # the second arrives just as the window closes
    _judge(fn, _ticks([0, 6, 12, 18, 24, 30]), 8 * TICK, 8)  # each within a window of the one before
    for size in (1, 2, rng.randint(3, 5), 32):
        for width in (rng.randint(4, 12), rng.randint(20, 60)):
            gaps = [rng.choice([0, 1, 3, rng.randint(4, 40)]) for _ in range(rng.randint(10, 24))]
            start = rng.randint(1, 640)  # a clock does not start at zero
            _judge(fn, _ticks([start + sum(gaps[:index]) for index in range(len(gaps))]), width * TICK, size)
    _judge(fn, _ticks([3, 3, 3, 5, 5, 9]), 0.0, 4)
    _judge(fn, [], 0.25, 4)


def _ticks(times: Sequence[int]) -> list[float]:
    return [time * TICK for time in times]


def _judge(fn: Callable, arrivals: list[float], window: float, size: int) -> None:
    got = fn(list(arrivals), window, size)
    given = {"arrivals": str(arrivals), "window": window, "size": size, "count": len(arrivals)}
    batches = _plain(got, given)
    want = form_batches(arrivals, window, size)
    if batches == want:
        return
    given |= {"got": batches, "want": want}
    names = [name for _, members in batches for name in members]
    twice = next((name for name in names if names.count(name) > 1), None)
    expect(twice is None, "twice", name=twice, **given)
    missing = [name for name in range(len(arrivals)) if name not in names]
    tail = missing == list(range(len(arrivals) - len(missing), len(arrivals)))
    expect(not (missing and tail), "starved", missing=missing, **given)
    expect(not missing, "missing", missing=missing, **given)
    expect(len(names) == len(arrivals), "unknown", **given)
    large = next((members for _, members in batches if len(members) > size), None)
    expect(large is None, "too_large", members=large, **given)
    early = next(((s, m) for s, m in batches for n in m if arrivals[n] > s), None)
    typical = _typical(arrivals, window, size)
    for mistake, wrong in typical.items():
        expect(wrong == want or batches != wrong, mistake, **given)
    expect(early is None, "before_arrival", batch=early, **given)
    index = next(i for i, one in enumerate(want) if i >= len(batches) or batches[i] != one)
    first = {"index": index, "there": batches[index] if index < len(batches) else None, "right": want[index]}
    same = index < len(batches) and batches[index][1] == want[index][1]
    expect(not same, "start", **first, **given)
    expect(False, "members", **first, **given)


def _plain(got: Any, given: dict[str, Any]) -> list[Batch]:
    """What was returned as [(start, [request, …]), …]."""
    expect(isinstance(got, list | tuple), "form", got=got, **given)
    batches: list[Batch] = []
    for one in got:
        expect(isinstance(one, list | tuple) and len(one) == 2, "form", got=got, **given)
        start, members = number(one[0]), one[1]
        expect(start is not None and isinstance(members, list | tuple), "form", got=got, **given)
        whole = all(hasattr(name, "__index__") and not isinstance(name, bool) for name in members)
        expect(bool(members) and whole, "form", got=got, **given)
        batches.append((start or 0.0, [int(name) for name in members]))
    return batches


def _typical(arrivals: list[float], window: float, size: int) -> dict[str, list[Batch]]:
    """What usual mistakes would give."""
    right = form_batches(arrivals, window, size)
    closes = [arrivals[members[0]] + window for _, members in right]
    ends = [(arrivals[members[-1]], members) for _, members in right]
    nexts = [arrivals[one[1][0]] for one in right[1:]]
    return {
        "restarts": _restarting(arrivals, window, size),
        "waits_when_full": [(close, members) for close, (_, members) in zip(closes, right, strict=True)],
        "starts_at_last": ends,
        "starts_at_next": [
            (start if len(members) == size else after, members)
            for (start, members), after in zip(right, [*nexts, right[-1][0]] if right else [], strict=True)
        ],
        "shut_out": _shut_out(arrivals, window, size),
        "sizes_only": _sizes_only(arrivals, size),
    }


def _restarting(arrivals: list[float], window: float, size: int) -> list[Batch]:
    """Each arrival starts the window again."""
    batches: list[list[int]] = []
    for name, moment in enumerate(arrivals):
        if batches and len(batches[-1]) < size and moment <= arrivals[batches[-1][-1]] + window:
            batches[-1].append(name)
        else:
            batches.append([name])
    return [(arrivals[one[-1]] + (0 if len(one) == size else window), one) for one in batches]


def _shut_out(arrivals: list[float], window: float, size: int) -> list[Batch]:
    """Whoever comes just as the window closes is left out."""
    batches: list[list[int]] = []
    for name, moment in enumerate(arrivals):
        if batches and len(batches[-1]) < size and moment < arrivals[batches[-1][0]] + window:
            batches[-1].append(name)
        else:
            batches.append([name])
    return [(arrivals[one[-1]] if len(one) == size else arrivals[one[0]] + window, one) for one in batches]


def _sizes_only(arrivals: list[float], size: int) -> list[Batch]:
    """Batches by size, the window ignored."""
    groups = [list(range(a, min(a + size, len(arrivals)))) for a in range(0, len(arrivals), size)]
    return [(arrivals[one[-1]], one) for one in groups]


EXERCISES = [
    Exercise(
        name="form_batches",
        notebook="03_batch",
        level="core",
        points=3,
        minutes=11,
        check=_check_batches,
        reference=form_batches,
        keeps_arguments=True,
    )
]
