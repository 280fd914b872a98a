"""Exercise: one decode step of attention over a cache."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from labkit.course.exercise import AnswerRaised, Exercise, expect
from labkit.course.exercises.cache.tensors import as_tensor, judge, near, normal

if TYPE_CHECKING:
    from torch import Tensor


def cached_attention(
    query: Tensor, key: Tensor, value: Tensor, keys: Tensor, values: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Attention of one new token over a cache that grows by it (labkit's own answer)."""
    import torch

    keys = torch.cat([keys, key[:, None]], dim=1)
    values = torch.cat([values, value[:, None]], dim=1)
    scores = torch.einsum("hd,htd->ht", query, keys) / query.shape[-1] ** 0.5
    return torch.einsum("ht,htd->hd", scores.softmax(-1), values), keys, values


def _check(fn: Callable, rng: random.Random) -> None:
    for start, stop in ((0, 4), (rng.randint(3, 6), 9)):
        heads, dim = rng.choice([2, 3]), rng.choice([8, 12])
        query, key, value = (normal(rng, heads, stop, dim) for _ in range(3))
        keys, values = key[:, :start], value[:, :start]
        for step in range(start, stop):
            given = {"past": step, "heads": heads, "dim": dim}
            got = _called(fn, (query[:, step], key[:, step], value[:, step], keys, values), given)
            expect(isinstance(got, list | tuple) and len(got) == 3, "triple", got=got, **given)
            output, *grown = got
            want = _causal(query, key, value)[:, step]  # the whole text again, as without a cache
            judge(output, want, "output", _typical(query, key, value, step), **given)
            for name, cache, whole in zip(("keys", "values"), grown, (key, value), strict=True):
                _judge_cache(name, cache, whole[:, : step + 1], given)
            keys, values = key[:, : step + 1], value[:, : step + 1]


def _called(fn: Callable, arguments: tuple[Tensor, ...], given: dict[str, Any]) -> Any:
    """What the answer returns; tensors that do not fit together get a text that says how they lie."""
    try:
        return fn(*arguments)
    except AnswerRaised as raised:
        joined = "Sizes of tensors must match" in raised.message or "number of dimensions" in raised.message
        line = raised.lines[-1] if raised.lines else ""
        expect(not joined, "not_joined", said=raised.message, line=line, **given)
        raise


def _causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """All positions at once, [heads, tokens, dim]: each sees itself and what is before it."""
    import torch.nn.functional as functional

    return functional.scaled_dot_product_attention(query, key, value, is_causal=True)


def _typical(query: Tensor, key: Tensor, value: Tensor, step: int) -> dict[str, Tensor]:
    import torch

    now, root = query[:, step], query.shape[-1] ** 0.5
    seen, mixed = key[:, : step + 1], value[:, : step + 1]
    scores = torch.einsum("hd,htd->ht", now, seen) / root
    mix = torch.einsum
    return {
        "not_itself": mix("ht,htd->hd", scores[:, :-1].softmax(-1), mixed[:, :-1]),
        "no_scale": mix("ht,htd->hd", (scores * root).softmax(-1), mixed),
        "scaled_by_dim": mix("ht,htd->hd", (scores / root).softmax(-1), mixed),
        "only_new": value[:, step],
        "softmax_over_heads": mix("ht,htd->hd", scores.softmax(0), mixed),
        "no_softmax": mix("ht,htd->hd", scores, mixed),
        "swapped": mix("ht,htd->hd", (mix("hd,htd->ht", now, mixed) / root).softmax(-1), seen),
    }


def _judge_cache(name: str, cache: Any, want: Tensor, given: dict[str, Any]) -> None:
    import torch

    got = as_tensor(cache)
    wanted = list(want.shape)
    expect(got is not None and got.dim() == 3, "cache_form", name=name, got=cache, want=wanted, **given)
    assert got is not None
    not_grown = near(got, want[:, :-1])
    expect(not not_grown, "not_grown", name=name, got=list(got.shape), want=wanted, **given)
    front = torch.cat([want[:, -1:], want[:, :-1]], dim=1)
    expect(near(got, want) or not near(got, front), "new_in_front", name=name, **given)
    expect(near(got, want), "cache", name=name, got=cache, want=wanted, **given)


EXERCISES = [
    Exercise(
        name="cached_attention",
        notebook="04_cache",
        level="core",
        points=2,
        minutes=8,
        check=_check,
        reference=cached_attention,
    )
]
