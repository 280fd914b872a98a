"""Exercise: keys or values in int8, with one scale for each token and head."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from labkit.course.exercise import Exercise, expect
from labkit.course.exercises.cache.tensors import as_tensor, near, normal

if TYPE_CHECKING:
    from torch import Tensor

LARGEST = 127


def int8_kv(x: Tensor) -> tuple[Tensor, Tensor]:
    """int8 and scales of x [tokens, heads, dim] (labkit's own answer)."""
    import torch

    scales = x.abs().amax(-1) / LARGEST
    steps = x / torch.where(scales == 0, torch.ones_like(scales), scales)[..., None]
    return steps.round().to(torch.int8), scales


def _check(fn: Callable, rng: random.Random) -> None:
    tokens, heads, dim = rng.randint(5, 9), rng.choice([2, 3, 4]), rng.choice([8, 16])
    plain = normal(rng, tokens, heads, dim)
    _judge(fn, plain, "random numbers")
    loud = plain.clone()
    loud[rng.randrange(tokens), rng.randrange(heads)] *= 50  # one token is loud in one head
    _judge(fn, loud, "one token 50 times as large in one head")
    empty = plain.clone()
    empty[rng.randrange(tokens), rng.randrange(heads)] = 0
    _judge(fn, empty, "one token all zeros in one head")


def _judge(fn: Callable, x: Tensor, what: str) -> None:
    import torch

    given: dict[str, Any] = {"shape": list(x.shape), "what": what}
    got = fn(x.clone())
    expect(isinstance(got, list | tuple) and len(got) == 2, "form", got=got, **given)
    whole, scales = as_tensor(got[0]), as_tensor(got[1])
    expect(whole is not None and scales is not None, "form", got=got, **given)
    assert whole is not None and scales is not None
    expect(whole.dtype == torch.int8, "dtype", got=str(whole.dtype), **given)
    expect(whole.shape == x.shape, "form", got=got, **given)
    largest = x.abs().amax(-1)
    want = largest / LARGEST
    _judge_scales(scales, x, want, given)
    back = whole.double() * scales.double()[..., None]
    silent = largest == 0
    expect(bool((whole[silent] == 0).all()), "zeros", got=whole[silent].flatten(), **given)
    error = ((back - x).abs() / torch.where(silent, 1.0, want)[..., None]).max().item()
    truncated = near(back, (x / torch.where(silent, 1.0, want)[..., None]).trunc() * want[..., None], 1e-4)
    expect(error <= 0.51 or not truncated, "truncated", error=error, **given)
    expect(bool((whole >= -LARGEST).all()), "minus_128", **given)
    expect(error <= 0.51, "error", error=error, **given)


def _judge_scales(scales: Tensor, x: Tensor, want: Tensor, given: dict[str, Any]) -> None:
    wanted = list(want.shape)
    by = {
        "per_tensor": x.abs().amax() / LARGEST,
        "per_head": x.abs().amax((0, 2)) / LARGEST,
        "per_token": x.abs().amax((1, 2)) / LARGEST,
        "per_channel": x.abs().amax(0) / LARGEST,
    }
    squeezed = scales.squeeze()
    for mistake, value in by.items():
        expect(not near(squeezed, value, 1e-5), mistake, got=list(scales.shape), want=wanted, **given)
    shape = list(scales.shape)
    expect(shape != [*wanted, 1], "kept_axis", got=shape, want=wanted, **given)
    expect(shape == wanted, "scale_shape", got=shape, want=wanted, **given)
    flat = scales
    expect(bool(flat.isfinite().all()), "not_finite", **given)
    inverse = near(flat[want > 0], 1 / want[want > 0], 1e-4)
    expect(not inverse, "inverted", got=flat, want=want, **given)
    for mistake, factor in (
        ("over_128", LARGEST / 128),
        ("over_255", LARGEST / 255),
        ("over_256", LARGEST / 256),
    ):
        expect(not near(flat[want > 0], want[want > 0] * factor, 1e-5), mistake, **given)
    signed = near(flat, x.amax(-1) / LARGEST, 1e-5)
    expect(not signed or near(flat, want, 1e-5), "signed", **given)
    expect(near(flat[want > 0], want[want > 0], 1e-5), "scales", got=flat, want=want, **given)


EXERCISES = [
    Exercise(
        name="int8_kv",
        notebook="04_cache",
        level="extra",
        points=3,
        minutes=7,
        check=_check,
        reference=int8_kv,
    )
]
