"""Exercise: bytes that a residual addition and its RMSNorm move, apart and fused."""

import operator
import random
from collections.abc import Callable
from typing import Any

from labkit.course.exercise import Exercise, expect
from labkit.course.exercises.profile.values import judge


def norm_bytes(tokens: int, hidden: int, element: int, fused: bool) -> int:
    """Bytes moved (labkit's own answer)."""
    state = tokens * hidden
    numbers = 4 * state + hidden if fused else 3 * state + 2 * state + hidden
    return numbers * element


def _check(fn: Callable, rng: random.Random) -> None:
    for width in (4, 2, 1):
        tokens, hidden = rng.sample([13, 17, 19, 23, 29, 31, 37], 2)  # primes: no mistake looks like another
        for fused in (True, False):
            _judge(fn, tokens, hidden, width, fused)
    _judge(fn, 1, rng.choice([41, 43, 47]), 2, True)


def _judge(fn: Callable, tokens: int, hidden: int, width: int, fused: bool) -> None:
    state, weight = tokens * hidden * width, hidden * width
    want = (4 if fused else 5) * state + weight
    given: dict[str, Any] = {"tokens": tokens, "hidden": hidden, "element": width, "fused": fused}
    given |= {"state": state, "weight": weight, "variant": "one kernel" if fused else "two kernels"}
    typical = {
        "no_weight": want - weight,
        "weight_each_token": want - weight + tokens * weight,
        "elements": want // width,
        "bits": 8 * want,
        "written_only": 2 * state,
    }
    if fused:
        typical |= {"other_variant": want + state, "read_only": 2 * state + weight}
        typical |= {"sum_not_written": want - state, "sum_read_back": want + state + weight}
    else:
        typical |= {"sum_kept": want - 2 * state, "sum_not_read": want - state, "all_steps": 10 * state}
    got = fn(tokens, hidden, width, fused)
    judge(got, want, "bytes", typical, **given)
    expect(_whole(got), "not_whole", got=got, kind=type(got).__name__, want=want, **given)


def _whole(got: Any) -> bool:
    """Whether it is a whole number by its type (a float is not, whatever its value)."""
    try:
        operator.index(got)
    except TypeError:
        return False
    return True


EXERCISES = [
    Exercise(
        name="norm_bytes",
        notebook="05_fuse",
        level="extra",
        points=2,
        minutes=5,
        check=_check,
        reference=norm_bytes,
    )
]
