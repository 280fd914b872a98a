"""Three exercises to test the grader with: plain numbers, tensors, and callables."""

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from labkit.course import exercises, texts
from labkit.course.exercise import Exercise, expect


def spread(values: list[float]) -> float:
    return max(values) - min(values) if values else 0.0


def check_spread(answer: Callable[..., Any], rng: random.Random) -> None:
    for count in (0, 1, rng.randint(2, 9)):
        values = [rng.uniform(-9, 9) for _ in range(count)]
        got, want = answer(values), spread(values)
        expect(
            isinstance(got, float) and math.isclose(got, want), "spread", values=values, got=got, want=want
        )


def centred(rows: Any) -> Any:
    return rows - rows.mean(dim=1, keepdim=True)


def check_centred(answer: Callable[..., Any], rng: random.Random) -> None:
    import torch

    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    rows = torch.randn(rng.randint(2, 5), rng.randint(2, 5), generator=generator)
    got = answer(rows)
    expect(
        got.shape == rows.shape and torch.allclose(got, centred(rows), atol=1e-5),
        "centred",
        rows=rows,
        got=got,
    )


def timed(work: Callable[[], None], clock: Callable[[], float]) -> float:
    begun = clock()
    work()
    return clock() - begun


def check_timed(answer: Callable[..., Any], rng: random.Random) -> None:
    now = rng.uniform(0, 100)
    takes = rng.uniform(1, 5)

    def work() -> None:
        nonlocal now
        now += takes

    got = answer(work, lambda: now)
    expect(math.isclose(got, takes), "timed", got=got, want=takes)


EXERCISES = (
    Exercise("spread", "91_grading", "core", 2, 3, check_spread, spread),
    Exercise("centred", "91_grading", "core", 1, 2, check_centred, centred),
    Exercise("timed", "91_grading", "extra", 3, 4, check_timed, timed),
)


def install() -> None:
    """Make them known to labkit."""
    exercises.add(EXERCISES)
    texts.add_folder(Path(__file__).parent / "texts")
