"""Exercise: how much each neuron matters, from its gradient (Molchanov et al. 2017; Michel et al. 2019)."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from labkit.course.exercise import Exercise, expect
from labkit.course.exercises.cache.tensors import near, normal

if TYPE_CHECKING:
    from torch import Tensor


def taylor_importance(activations: Tensor, gradients: Tensor) -> Tensor:
    """|Σ activation · gradient| of a sample, averaged over samples (labkit's own answer)."""
    return (activations * gradients).sum(1).abs().mean(0)


def _check(fn: Callable, rng: random.Random) -> None:
    samples, tokens, neurons = rng.sample([3, 4, 5, 6, 7], 3)
    _judge(fn, rng, samples, tokens, neurons, "random numbers")
    _judge(fn, rng, samples, tokens, neurons, "a neuron that is never active", dead=True)
    _judge(fn, rng, samples, 1, neurons, "one token a sample")
    _judge(fn, rng, 1, tokens, neurons, "one sample")


def _judge(
    fn: Callable, rng: random.Random, samples: int, tokens: int, neurons: int, case: str, dead: bool = False
) -> None:
    import torch

    a, g = normal(rng, samples, tokens, neurons) + 0.3, normal(rng, samples, tokens, neurons, scale=3)
    if dead:
        a[:, :, rng.randrange(neurons)] = 0
    if bool(((a * g).sum((0, 1)) > 0).all()):
        g = -g  # at least one change is negative
    product = a * g
    want = product.sum(1).abs().mean(0)
    given: dict[str, Any] = {"samples": samples, "tokens": tokens, "neurons": neurons, "case": case}
    got = fn(a, g)
    expect(isinstance(got, torch.Tensor), "form", got=got, shape=[neurons], **given)
    shape = list(got.shape)
    expect(shape not in ([samples], [tokens]) or shape == [neurons], "other_axis", got=shape, **given)
    expect(shape != [samples, neurons] and shape != [tokens, neurons], "not_averaged", got=shape, **given)
    expect(shape == [neurons] and bool(got.isfinite().all()), "form", got=got, shape=[neurons], **given)
    if near(got, want, 1e-5):
        return
    for mistake, value in _mistakes(a, g):
        expect(not near(got, value, 1e-5), mistake, got=got, want=want, **given)
    expect(False, "importance", got=got, want=want, **given)


def _mistakes(a: Tensor, g: Tensor) -> list[tuple[str, Tensor]]:
    """What typical mistakes give, by the failure that names them."""
    product = a * g
    inner = product.sum(1)
    samples, tokens = a.shape[:2]
    return [
        ("abs_too_early", product.abs().sum(1).mean(0)),
        ("abs_too_early", product.abs().mean((0, 1))),
        ("signed", inner.mean(0)),
        ("abs_too_late", inner.mean(0).abs()),
        ("token_mean", inner.abs().mean(0) / tokens),
        ("sample_sum", inner.abs().mean(0) * samples),
        ("gradient_only", g.sum(1).abs().mean(0)),
        ("gradient_only", g.abs().mean((0, 1))),
        ("activation_only", a.sum(1).abs().mean(0)),
        ("activation_only", a.abs().sum(1).mean(0)),
        ("activation_only", a.abs().mean((0, 1))),
        ("apart", (a.sum(1) * g.sum(1)).abs().mean(0)),
        ("squared", inner.square().mean(0)),
        ("squared", inner.square().mean(0).sqrt()),
        ("axes_swapped", product.sum(0).abs().mean(0)),
        ("axes_swapped", product.mean(0).abs().sum(0)),
    ]


EXERCISES = [
    Exercise(
        name="taylor_importance",
        notebook="02_compress",
        level="extra",
        points=2,
        minutes=4,
        check=_check,
        reference=taylor_importance,
        keeps_arguments=True,
    )
]
