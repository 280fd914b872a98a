"""Exercise: who is served next, when some are more important and nobody may starve."""

import random
from collections.abc import Callable, Sequence

from labkit.course.exercise import Exercise, expect

Waiting = tuple[str, float, int]  # name, arrival [s], priority


def serving_order(waiting: Sequence[Waiting], head_start: float) -> list[str]:
    """Names in the order in which they are served (labkit's own answer)."""
    return [name for name, _, _ in sorted(waiting, key=lambda one: one[1] + one[2] * head_start)]


def _check_order(fn: Callable, rng: random.Random) -> None:
    for count, head_start in ((12, 8.0), (8, 2.0), (3, 4.0)):
        _judge_order(fn, _drawn(rng, count, head_start), head_start)
    _judge_order(fn, _drawn(rng, 6, 1.0), 0.0)
    starved = [("patient", 0.0, 0)] + [(f"vip{index}", 1.0 + index, -1) for index in range(6)]
    _judge_order(fn, starved, 3.5)
    twins = [
        (name, 5.0, 0) for name in ("second", "first", "middle")
    ]  # equal ones keep the order they came in
    _judge_order(fn, [("late", 6.0, 0), *twins], 2.0)
    _judge_order(fn, [], 2.0)


def _drawn(rng: random.Random, count: int, head_start: float) -> list[Waiting]:
    """Requests in order of arrival; the first is ordinary, a VIP comes in time to overtake it and another too late.

    Moments are eighths of the head start: short to read, and exact in binary.
    """
    times = sorted(rng.sample(range(1, 10 * count), count - 1))
    waiting: list[Waiting] = [("r0", 0.0, 0)]
    for index, moment in enumerate(times, start=1):
        waiting.append((f"r{index}", moment * head_start / 8, rng.choice([-2, -1, 0, 0, 1])))
    waiting[1] = ("r1", head_start * rng.choice([0.25, 0.5]), -1)
    waiting[2] = ("r2", head_start * rng.choice([1.25, 1.5]), -1)
    if count > 4:  # a VIP right behind somebody: even a head start of a second changes something
        waiting[3:5] = [("r3", 2.0 * head_start, 0), ("r4", 2.0 * head_start + head_start / 16, -1)]
    return sorted(waiting, key=lambda one: one[1])


def _judge_order(fn: Callable, waiting: list[Waiting], head_start: float) -> None:
    got = fn(list(waiting), head_start)
    given = {"waiting": str(waiting), "head_start": head_start}
    expect(isinstance(got, list | tuple), "form", got=got, **given)
    names = list(got)
    expect(all(isinstance(name, str) for name in names), "form", got=got, **given)
    expect(sorted(names) == sorted(name for name, _, _ in waiting), "lost", got=got, **given)

    def by(key: Callable[[Waiting], object]) -> list[str]:
        return [name for name, _, _ in sorted(waiting, key=key)]  # type: ignore[arg-type]

    want = by(lambda one: one[1] + one[2] * head_start)
    typical = {
        "first_come": by(lambda one: one[1]),
        "strict": by(lambda one: (one[2], one[1])),
        "sign": by(lambda one: one[1] - one[2] * head_start),
        "last_first": want[::-1],
        "no_head_start": by(lambda one: one[1] + one[2]),
        "by_name": by(lambda one: (one[1] + one[2] * head_start, one[0])),
    }
    if names == want:
        return
    for mistake, order in typical.items():
        expect(names != order, mistake, got=got, want=want, **given)
    expect(False, "order", got=got, want=want, **given)


EXERCISES = [
    Exercise(
        name="serving_order",
        notebook="03_batch",
        level="extra",
        points=2,
        minutes=5,
        check=_check_order,
        reference=serving_order,
        keeps_arguments=True,
    )
]
