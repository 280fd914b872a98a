"""Exercise: the weights of three projections as one matrix, and how its result is cut."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from labkit.course.exercise import AnswerRaised, Exercise, expect
from labkit.course.exercises.cache.tensors import as_tensor, near, normal

if TYPE_CHECKING:
    from torch import Tensor


def merge_qkv(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, list[int]]:
    """One weight, and the sizes of its parts (labkit's own answer)."""
    import torch

    return torch.cat([q, k, v]), [len(q), len(k), len(v)]


def _check(fn: Callable, rng: random.Random) -> None:
    for group, kv_heads in ((rng.choice([2, 3, 4]), 2), (1, 3), (rng.choice([5, 6]), 1)):
        dim = rng.choice([4, 6])
        width = rng.choice([7, 10, 13])  # no multiple of the rows' number
        q = normal(rng, group * kv_heads * dim, width)
        k, v = (normal(rng, kv_heads * dim, width) for _ in range(2))
        given = {"q": list(q.shape), "k": list(k.shape), "v": list(v.shape)}
        try:
            got = fn(q, k, v)
        except AnswerRaised as raised:
            fits = "stack expects" in raised.message or "Sizes of tensors" in raised.message
            expect(not fits, "not_joined", said=raised.message, line="".join(raised.lines[-1:]), **given)
            raise
        _judge(got, [q, k, v], normal(rng, rng.randint(2, 5), width), given)


def _judge(got: Any, parts: list[Tensor], x: Tensor, given: dict[str, Any]) -> None:
    import torch

    sizes = [len(part) for part in parts]
    pair = isinstance(got, list | tuple) and len(got) == 2
    weight = as_tensor(got[0]) if pair else None
    expect(weight is not None, "form", got=got, **given)
    assert weight is not None
    rows, width = sum(sizes), x.shape[1]
    shape = list(weight.shape)
    expect(shape != [width, rows] or rows == width, "transposed", shape=shape, want=[rows, width], **given)
    expect(shape == [rows, width], "shape", shape=shape, want=[rows, width], **given)
    types = {"dtype": str(weight.dtype), "own": str(parts[0].dtype)}
    expect(weight.dtype == parts[0].dtype, "dtype", **types, **given)
    split = got[1]
    whole = isinstance(split, list | tuple) and all(type(size) is int for size in split)
    expect(whole, "split_form", got=got[1], want=sizes, **given)
    split = list(split)
    grouped = sizes[0] != sizes[1]
    expect(split != [rows // 3] * 3 or not grouped, "thirds", got=split, want=sizes, **given)
    ends = [sizes[0], sizes[0] + sizes[1]]
    expect(split not in (ends, [*ends, rows], [0, *ends]), "ends", got=split, want=sizes, **given)
    expect(len(split) == 3 and sum(split) == rows, "split", got=split, want=sizes, rows=rows, **given)
    expect(split == sizes, "order_of_split" if sorted(split) == sorted(sizes) else "split",
           got=split, want=sizes, rows=rows, **given)  # fmt: skip
    for name, cut, part in zip("qkv", (x @ weight.double().T).split(split, -1), parts, strict=True):
        mine = [other for other, w in zip("qkv", parts, strict=True) if near(cut, x @ w.T)]
        expect(not mine or mine[0] == name, "order", part=name, found="".join(mine), **given)
        shuffled = near(cut.sort(-1).values, (x @ part.T).sort(-1).values)
        expect(near(cut, x @ part.T) or not shuffled, "shuffled", part=name, **given)
        expect(near(cut, x @ part.T), "product", part=name, got=cut, want=x @ part.T, **given)
    expect(bool(torch.isfinite(weight).all()), "form", got=got, **given)


EXERCISES = [
    Exercise(
        name="merge_qkv",
        notebook="05_fuse",
        level="core",
        points=2,
        minutes=3,
        check=_check,
        reference=merge_qkv,
    )
]
