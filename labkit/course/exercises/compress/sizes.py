"""Exercise: what weights in few bits take, their scales included."""

import operator
import random
from collections.abc import Callable
from itertools import combinations
from typing import Any

from labkit.course.exercise import Exercise, expect
from labkit.course.exercises.profile.values import judge


def model_bytes(parameters: int, bits: int, group: int, scale_bits: int) -> int:
    """Whole bytes of the weights and of a scale for each group (labkit's own answer)."""
    groups = -(-parameters // group)
    return -(-(parameters * bits + groups * scale_bits) // 8)


def _check(fn: Callable, rng: random.Random) -> None:
    for bits, scale_bits in ((3, 16), (4, 24), (8, 32), (5, 16)):
        while True:
            group = rng.choice([11, 13, 16, 17])
            parameters = group * rng.randint(20, 90) + rng.randint(1, group - 1)
            values = [value for _, value in _mistakes(parameters, bits, group, scale_bits) if value > 1]
            values.append((parameters * bits + -(-parameters // group) * scale_bits) / 8)
            part = values[-1] % 1 > 0 or bits == 8
            # the last byte is not full either, and no mistake looks like another one or like none
            if part and all(abs(one - other) >= 2 for one, other in combinations(values, 2)):
                break
        _judge(fn, parameters, bits, group, scale_bits, "the last group is not full")
    _judge(fn, 128 * rng.randint(5, 40), 4, 128, 16, "whole groups")
    _judge(fn, rng.randint(9, 15), 4, 32, 16, "less than one group")
    _judge(fn, rng.randint(6_500, 6_999) * 10**6, 4, 128, 16, "a model of nearly 7B")


def _mistakes(parameters: int, bits: int, group: int, scale_bits: int) -> list[tuple[str, float]]:
    """What typical mistakes give, by the failure that names them."""
    weights, groups = parameters * bits, -(-parameters // group)
    right = weights + groups * scale_bits
    return [
        ("no_scales", weights / 8),
        ("group_dropped", (weights + parameters // group * scale_bits) / 8),
        ("scale_each", parameters * (bits + scale_bits) / 8),
        ("one_scale", (weights + scale_bits) / 8),
        ("scale_bytes", weights / 8 + groups * scale_bits),
        ("as_bits", right),
        ("scales_in_bits", (weights + groups * bits) / 8),
        ("group_scales", (weights + group * scale_bits) / 8),
        ("gigabytes", right / 8e9),
        ("gibibytes", right / 8 / 2**30),
    ]


def _judge(fn: Callable, parameters: int, bits: int, group: int, scale_bits: int, case: str) -> None:
    want, groups = model_bytes(parameters, bits, group, scale_bits), -(-parameters // group)
    all_bits = parameters * bits + groups * scale_bits
    given: dict[str, Any] = {"parameters": parameters, "bits": bits, "group": group, "scale_bits": scale_bits}
    given |= {"case": case, "groups": groups, "all_bits": all_bits}
    got = fn(parameters, bits, group, scale_bits)
    exact = all_bits / 8
    expect(not _is(got, exact) or exact == want, "part_of_byte", got=got, want=want, **given)
    expect(not _is(got, exact // 1) or exact == want, "byte_dropped", got=got, want=want, **given)
    for mistake, value in _mistakes(parameters, bits, group, scale_bits):
        # rounded to whole bytes, either way, it is the same mistake
        near = any(
            _is(got, each) for each in (value, value // 1, -(-value // 1), want / exact * value) if each
        )
        expect(not near or abs(value - exact) < 1, mistake, got=got, want=want, **given)
    judge(got, want, "bytes", {}, rel=1e-12, **given)
    expect(_whole(got), "not_whole", got=got, kind=type(got).__name__, want=want, **given)


def _is(got: Any, value: float) -> bool:
    """Whether `got` is this very number, but for the last digits of a float."""
    try:
        return abs(float(got) - value) <= 1e-12 * abs(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return False


def _whole(got: Any) -> bool:
    """Whether it is a whole number by its type (a float is not, whatever its value)."""
    try:
        operator.index(got)
    except TypeError:
        return False
    return True


EXERCISES = [
    Exercise(
        name="model_bytes",
        notebook="02_compress",
        level="core",
        points=1,
        minutes=3,
        check=_check,
        reference=model_bytes,
    )
]
