"""Exercise: what a student loses against its teacher's softened distribution (Hinton, Vinyals & Dean 2015)."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from labkit.course.exercise import Exercise, expect
from labkit.course.exercises.cache.tensors import normal
from labkit.course.exercises.compress.telling import tells_apart
from labkit.course.exercises.profile.values import close, number

if TYPE_CHECKING:
    from torch import Tensor


def distil_loss(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """KL(teacher ‖ student) of softened distributions · T², a mean over tokens (labkit's own answer)."""
    import torch

    wanted, have = ((logits / temperature).log_softmax(-1) for logits in (teacher, student))
    apart = torch.where(wanted > -math.inf, wanted - have, torch.zeros_like(wanted))
    return temperature**2 * (wanted.exp() * apart).sum(-1).mean()


def _check(fn: Callable, rng: random.Random) -> None:
    tokens, vocabulary = rng.randint(3, 5), rng.randint(6, 9)
    shape = tokens, vocabulary
    while True:
        student, teacher = (normal(rng, *shape, scale=3) for _ in range(2))
        temperature = rng.uniform(1.6, 2.7)
        want = distil_loss(student, teacher, temperature).item()
        if tells_apart(_mistakes(student, teacher, temperature), want):
            break
    _judge(fn, student, teacher, temperature, "random logits")
    _judge(fn, normal(rng, *shape, scale=3), normal(rng, *shape, scale=3), 1.0, "temperature 1")
    student, teacher = (normal(rng, *shape, scale=1e4) for _ in range(2))
    first, second = rng.sample(range(vocabulary), 2)
    student[:, first], teacher[:, second] = 5e4, 5e4  # each is sure of another token
    _judge(fn, student, teacher, rng.uniform(1.6, 2.7), "logits in the ten thousands")
    student, teacher = (normal(rng, *shape, scale=3) for _ in range(2))
    teacher[:, rng.randrange(vocabulary)] = -math.inf
    _judge(fn, student, teacher, rng.uniform(3, 5), "one token is masked out for the teacher, −inf")


def _judge(fn: Callable, student: Tensor, teacher: Tensor, temperature: float, case: str) -> None:
    import torch

    tokens, vocabulary = student.shape
    given: dict[str, Any] = {"tokens": tokens, "vocabulary": vocabulary, "temperature": temperature}
    given["case"] = case
    got = fn(student, teacher, temperature)
    expect(isinstance(got, torch.Tensor) or number(got) is None, "plain_number", got=got, **given)
    expect(isinstance(got, torch.Tensor) and got.is_floating_point(), "form", got=got, **given)
    shape = list(got.shape)
    expect(shape not in ([tokens], [tokens, 1]), "per_token", got=shape, **given)
    expect(shape == [], "form", got=got, **given)
    value, want = got.item(), distil_loss(student, teacher, temperature).item()
    if close(value, want, 1e-4):
        return
    here = {"got": value, "want": want, "square": temperature**2, **given}
    expect("thousands" not in case, "underflow", **here)
    expect(math.isfinite(value), "masked_nan" if "−inf" in case else "not_finite", **here)
    for mistake, typical in _mistakes(student, teacher, temperature):
        expect(not close(value, typical, 1e-5), mistake, **here)
    expect(False, "loss", **here)


def _mistakes(student: Tensor, teacher: Tensor, t: float) -> list[tuple[str, float]]:
    want = distil_loss(student, teacher, t).item()
    tokens, vocabulary = student.shape
    turned = distil_loss(student.T, teacher.T, t).item() * vocabulary
    soft = (teacher / t).softmax(-1)
    cross = t**2 * -(soft * (student / t).log_softmax(-1)).sum(-1).mean().item()
    return [
        ("no_square", want / t**2),
        ("not_squared", want / t),
        ("divided", want / t**4),
        ("reversed", distil_loss(teacher, student, t).item()),
        ("no_temperature", distil_loss(student, teacher, 1.0).item() * t**2),
        ("no_temperature", distil_loss(student, teacher, 1.0).item()),
        ("one_side", distil_loss(student * t, teacher, t).item()),
        ("one_side", distil_loss(student, teacher * t, t).item()),
        ("multiplied", distil_loss(student, teacher, 1 / t).item() * t**4),
        ("mean_of_all", want / vocabulary),
        ("summed", want * tokens),
        ("over_tokens", turned / tokens),
        ("over_tokens", turned / vocabulary),
        ("cross_entropy", cross),
        ("negative", -want),
    ]


EXERCISES = [
    Exercise(
        name="distil_loss",
        notebook="02_compress",
        level="core",
        points=2,
        minutes=5,
        check=_check,
        reference=distil_loss,
        keeps_arguments=True,
    )
]
