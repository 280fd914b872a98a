"""Exercise: what several parts, each made faster, do for the whole step (Amdahl 1967)."""

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

from labkit.course.exercise import AnswerRaised, Exercise, expect
from labkit.course.exercises.profile.values import judge


def speedup(shares: Sequence[float], factors: Sequence[float]) -> float:
    """How many times faster the whole is (labkit's own answer)."""
    left = sum(share / factor for share, factor in zip(shares, factors, strict=True))
    return 1 / (1 - sum(shares) + left)


def _check(fn: Callable, rng: random.Random) -> None:
    several = [rng.uniform(0.1, 0.3) for _ in range(3)]
    _judge(fn, several, [rng.uniform(1.3, 2), rng.uniform(2.5, 4), rng.uniform(5, 9)], "three parts")
    _judge(fn, [rng.uniform(0.2, 0.7)], [rng.uniform(2, 5)], "one part")
    share = rng.uniform(0.2, 0.4)
    slower = [rng.uniform(0.3, 0.6), rng.uniform(2, 4)]
    _judge(fn, [share, 0.8 - share], slower, "the first part has become slower")
    _judge(fn, [share, 1 - share], [rng.uniform(2, 3), rng.uniform(4, 6)], "nothing is left over")
    _judge(fn, [rng.uniform(0.3, 0.8)], [math.inf], "a part that takes no time any more")
    _judge(fn, [], [], "no part")


def _judge(fn: Callable, shares: list[float], factors: list[float], case: str) -> None:
    given: dict[str, Any] = {"shares": shares, "factors": factors, "case": case}
    pairs = list(zip(shares, factors, strict=True))
    rest = 1 - sum(shares)
    left = [share / factor for share, factor in pairs]
    want = 1 / (rest + sum(left))
    typical = {
        "no_rest": 1 / sum(left) if any(left) else math.inf,
        "weighted": rest + sum(share * factor for share, factor in pairs),
        "product": math.prod(factors),
        "each_alone": math.prod(1 / (1 - share + share / factor) for share, factor in pairs),
        "time": rest + sum(left),
        "saved": sum(shares) - sum(left),
        "first_only": 1 / (1 - shares[0] + left[0]) if shares else 1.0,
        "percent": 100 * want,
    }
    try:
        got = fn(shares, factors)
    except AnswerRaised as raised:
        expect(raised.kind != "ZeroDivisionError", "divided", said=raised.message, **given)
        raise
    judge(got, want, "speedup", typical, rest=rest, **given)


EXERCISES = [
    Exercise(
        name="speedup",
        notebook="05_fuse",
        level="core",
        points=1,
        minutes=3,
        check=_check,
        reference=speedup,
    )
]
