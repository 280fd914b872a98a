"""Exercise: from the timelines of host and device, find what keeps the device waiting."""

import random
from collections.abc import Callable, Sequence
from typing import Any

from labkit.course.exercise import Exercise, expect
from labkit.course.exercises.profile.planted import (
    FAULTS,
    Busy,
    Event,
    planted_timeline,
    scattered_timeline,
)
from labkit.timing import counted

HEALTHY = 0.1  # a device that idles less than this share of the time is itself the bottleneck


def find_bottleneck(host: Sequence[Event], device: Sequence[Busy]) -> str:
    """The host activity to blame for the device's idle time, or "device" (labkit's own answer)."""
    blame = {name: 0.0 for name, _, _ in host}
    reached = 0.0
    for start, end in device:
        for name, begin, stop in host:
            if begin <= reached < stop:
                blame[name] += start - reached
        reached = end
    return max(blame, key=lambda name: blame[name]) if sum(blame.values()) >= HEALTHY * reached else "device"


def _check(fn: Callable, rng: random.Random) -> None:
    faults = list(FAULTS) * 2
    rng.shuffle(faults)
    for fault in faults:
        host, device = planted_timeline(fault, rng)
        slower = rng.uniform(100, 200) if fault == "device" else rng.uniform(0.1, 0.5)
        _judge(fn, fault, *_delayed(host, device, slower))
    for idle in (rng.uniform(0.06, 0.09), rng.uniform(0.11, 0.125)):
        host, device, most = scattered_timeline(idle, rng)
        _judge(fn, most if idle >= HEALTHY else "device", host, device)


def _judge(fn: Callable, want: str, host: list[Event], device: list[Busy]) -> None:
    got = fn(list(host), list(device))
    expect(isinstance(got, str), "form", got=got)
    expect(got in ("device", *_names(host)), "unknown", got=got, names=", ".join(_names(host)))
    if got != want:
        _explain(got, want, host, device)


def _delayed(host: list[Event], device: list[Busy], slower: float) -> tuple[list[Event], list[Busy]]:
    """The same request on a machine `slower` times slower: absolute thresholds do not survive it."""
    events = [(name, start * slower, end * slower) for name, start, end in host]
    return events, [(start * slower, end * slower) for start, end in device]


def _explain(got: str, fault: str, host: list[Event], device: list[Busy]) -> None:
    """Raise the failure whose reasoning leads from this timeline to `got`."""
    total = device[-1][1]
    ends, starts = [0.0] + [end for _, end in device], [start for start, _ in device]
    gaps = list(zip(ends, starts, strict=False))
    idle = sum(stop - start for start, stop in gaps)
    given: dict[str, Any] = {
        "got": got,
        "want": fault,
        "idle": f"{idle / total:.0%}",
        "gaps": counted(len(gaps), "gap"),
    }
    longest = max(host, key=lambda event: event[2] - event[1])[0]
    expect(fault != "device", "healthy", longest=longest, **given)
    expect(got != "device", "not_device", **given)
    if fault == "tokenize":
        expect(False, "first_gap", first=f"{gaps[0][1] / total:.0%}", **given)
    at_end, overlap = dict.fromkeys(_names(host), 0.0), dict.fromkeys(_names(host), 0.0)
    for name, begin, stop in host:
        for start, end in gaps:
            at_end[name] += end - start if begin < end <= stop else 0.0
            overlap[name] += max(0.0, min(stop, end) - max(begin, start))
    given["overlap"] = max(overlap, key=lambda name: overlap[name])
    expect(got != given["overlap"], "overlap", **given)
    expect(got != max(at_end, key=lambda name: at_end[name]), "end_of_gap", **given)
    expect(False, "wrong", **given)


def _names(host: list[Event]) -> list[str]:
    return sorted({name for name, _, _ in host})


EXERCISES = [
    Exercise(
        name="find_bottleneck",
        notebook="01_profile",
        level="extra",
        points=3,
        minutes=9,
        check=_check,
        reference=find_bottleneck,
    )
]
