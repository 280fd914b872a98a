"""Exercise: where the time of one request went, stage by stage, from its trace."""

import random
from collections.abc import Callable, Sequence
from typing import Any

from labkit.course.exercise import Exercise, expect
from labkit.course.exercises.profile.values import judge

Event = tuple[str, float, float]  # name, start, end in seconds


def stage_budget(events: Sequence[Event], end: float) -> dict[str, float]:
    """Seconds of every stage and of the remainder, each instant counted once (labkit's own answer)."""
    cuts = sorted({0.0, end, *(time for _, start, stop in events for time in (start, stop))})
    budget = dict.fromkeys([name for name, _, _ in events], 0.0)
    budget["remainder"] = 0.0
    for left, right in zip(cuts, cuts[1:], strict=False):
        running = [event for event in events if event[1] <= left and right <= event[2]]
        stage = max(running, key=lambda event: event[1])[0] if running else "remainder"
        budget[stage] += right - left
    return budget


def _random_events(rng: random.Random) -> tuple[list[Event], float]:
    """A request's trace: gaps, a compile inside the first forward, streaming over the next forward."""
    now, events = rng.uniform(0.5, 2), []

    def add(stage: str, length: float) -> None:
        nonlocal now
        events.append((stage, now, now + length))
        now += length + rng.uniform(0.1, 0.6)

    add("preprocessing", rng.uniform(1, 2))
    add("forward", rng.uniform(8, 12))
    _, start, _ = events[-1]
    compile_start = start + rng.uniform(0.5, 1.5)
    events.append(("compile", compile_start, compile_start + rng.uniform(2, 5)))
    for _ in range(rng.randint(2, 4)):
        add("sampling", rng.uniform(1, 2))
        add("forward", rng.uniform(2, 4))
        if rng.random() < 0.7:  # the text of this token is sent while the next one is computed
            length = rng.uniform(1, 3)
            events.append(("postprocessing", events[-1][2] - rng.uniform(0.2, 0.9), events[-1][2] + length))
    add("postprocessing", rng.uniform(1, 2))
    end = max(stop for _, _, stop in events) + rng.uniform(0.2, 1)
    rng.shuffle(events)
    return [(stage, start / 1e3, stop / 1e3) for stage, start, stop in events], end / 1e3


def _check_budget(fn: Callable, rng: random.Random) -> None:
    flat = [
        ("preprocessing", 0.0, 0.002),
        ("forward", 0.002, 0.010 + rng.random() / 100),
        ("sampling", 0.03, 0.031),
    ]
    _judge_budget(fn, flat, 0.031)
    _judge_budget(fn, [("forward", 0.001, 0.009), ("compile", 0.002, 0.004 + rng.random() / 500)], 0.010)
    for _ in range(4):
        _judge_budget(fn, *_random_events(rng))


def _judge_budget(fn: Callable, events: list[Event], end: float) -> None:
    shown = ", ".join(f"({name}, {start:.5f}, {stop:.5f})" for name, start, stop in sorted(events)[:8])
    given: dict[str, Any] = {"events": shown, "count": len(events), "end": f"{end:.5f}"}
    got = fn(list(events), end)
    expect(isinstance(got, dict), "form", got=got, **given)
    expect("remainder" in got, "no_remainder", got=got, **given)
    names = {name for name, _, _ in events} | {"remainder"}
    for name in got:
        expect(name in names, "unknown_stage", stage=name, **given)

    want = _sampled_budget(events, end)
    lengths = dict.fromkeys(names, 0.0)
    for name, start, stop in events:
        lengths[name] += stop - start
    for name in sorted(names):
        value = got.get(name, 0.0)
        typical = {
            "milliseconds": want[name] * 1e3,
            "share": want[name] / end,
            "percent": 100 * want[name] / end,
        }
        if name != "remainder":
            typical["whole_length"] = lengths[name]
        judge(
            value, want[name], "remainder" if name == "remainder" else "stage", typical, stage=name, **given
        )


def _sampled_budget(events: Sequence[Event], end: float) -> dict[str, float]:
    """The same another way: events claim their instants in order of start, and the last claim holds."""
    edges = sorted({0.0, end} | {time for _, start, stop in events for time in (start, stop)})
    owner = ["remainder"] * (len(edges) - 1)
    for name, start, stop in sorted(events, key=lambda event: event[1]):
        for index in range(edges.index(start), edges.index(stop)):
            owner[index] = name
    want = dict.fromkeys([name for name, _, _ in events] + ["remainder"], 0.0)
    for index, name in enumerate(owner):
        want[name] += edges[index + 1] - edges[index]
    return want


EXERCISES = [
    Exercise(
        name="stage_budget",
        notebook="01_profile",
        level="extra",
        points=3,
        minutes=12,
        check=_check_budget,
        reference=stage_budget,
    )
]
