"""Three small exercises to test the course machinery with."""

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from labkit.course import exercises, texts
from labkit.course.exercise import Exercise, expect


def mean_gap(stamps: list[float]) -> float:
    return (stamps[-1] - stamps[0]) / (len(stamps) - 1)


def check_mean_gap(answer: Callable[..., Any], rng: random.Random) -> None:
    for _ in range(20):
        stamps = sorted(rng.uniform(0, 9) for _ in range(rng.randint(2, 9)))
        got, want = answer(stamps), mean_gap(stamps)
        expect(math.isclose(got, want, rel_tol=1e-9), "gap", stamps=stamps, got=got, want=want)


def doubled(values: Any) -> Any:
    return values * 2


def check_doubled(answer: Callable[..., Any], rng: random.Random) -> None:
    import torch

    values = torch.randn(rng.randint(1, 5), generator=torch.Generator().manual_seed(rng.randrange(2**31)))
    expect(torch.equal(answer(values), values * 2), "twice", values=values)


def twice(call: Callable[[int], Any]) -> list[Any]:
    return [call(1), call(2)]


def check_twice(answer: Callable[..., Any], rng: random.Random) -> None:
    seen: list[int] = []

    def call(number: int) -> int:
        seen.append(number)
        return number * 10

    got = answer(call)
    expect(seen == [1, 2], "calls", seen=seen)
    expect(got == [10, 20], "result", got=got)


EXERCISES = (
    Exercise("mean_gap", "90_demo", "core", 2, 3, check_mean_gap, mean_gap),
    Exercise("doubled", "90_demo", "core", 1, 2, check_doubled, doubled),
    Exercise("twice", "90_demo", "extra", 3, 4, check_twice, twice),
)


def install() -> None:
    """Make the exercises and their texts known in this process."""
    exercises.add(EXERCISES)
    texts.add_folder(Path(__file__).parent / "texts")
