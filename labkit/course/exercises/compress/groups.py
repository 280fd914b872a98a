"""Exercise: the error of rounding to 4 bits, by the size of the groups that share a scale."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from labkit.course.exercise import AnswerRaised, Exercise, expect
from labkit.course.exercises.cache.tensors import normal
from labkit.course.exercises.compress.telling import tells_apart
from labkit.course.exercises.profile.values import close, number

if TYPE_CHECKING:
    from torch import Tensor


def group_error(weight: Tensor, group: int) -> float:
    """Relative RMS error, each `group` columns of a row with a scale of their own (labkit's own answer)."""
    import torch

    rounded = torch.cat(
        [_round(part, part.abs().amax(1, keepdim=True)) for part in weight.split(group, 1)], 1
    )
    return _relative(rounded, weight)


def _round(part: Tensor, largest: Tensor, top: int = 7, low: int = -7, cut: str = "round") -> Tensor:
    scale = (largest / top).clamp(min=1e-300)
    return getattr(part / scale, cut)().clamp(low, top) * scale


def _relative(rounded: Tensor, weight: Tensor) -> float:
    return ((rounded - weight).norm() / weight.norm()).item()


def _check(fn: Callable, rng: random.Random) -> None:
    while True:
        group, rows = rng.choice([5, 6, 7]), rng.choice([9, 11])
        ragged = rng.randint(3, 5) * group + rng.randint(2, group - 1)
        weight = _weight(rng, rows, ragged)
        if tells_apart(_mistakes(weight, group), group_error(weight, group)):
            break
    _judge(fn, weight, group, "the last group of a row is narrower")
    _judge(fn, _weight(rng, rows, 4 * group), group, "whole groups")
    empty = _weight(rng, rows, ragged)
    start = group * rng.randrange(3)
    empty[rng.randrange(rows), start : start + group] = 0
    _judge(fn, empty, group, "one group all zeros")
    _judge(fn, _weight(rng, rows, group - 2), group, "a row narrower than a group")
    _judge(fn, _weight(rng, rows, ragged), 1, "groups of one")


def _weight(rng: random.Random, rows: int, columns: int) -> Tensor:
    """Random numbers, and in every row one eight times as large."""
    weight = normal(rng, rows, columns)
    for row in weight:
        row[rng.randrange(columns)] *= 8
    return weight


def _judge(fn: Callable, weight: Tensor, group: int, case: str) -> None:
    rows, columns = weight.shape
    last = columns % group or min(group, columns)
    given: dict[str, Any] = {"rows": rows, "columns": columns, "group": group, "last": last, "case": case}
    try:
        got = fn(weight, group)
    except AnswerRaised as raised:
        told = any(said in raised.message for said in ("invalid for input", "must match", "unflatten"))
        expect(not told or columns % group == 0, "uneven", said=raised.message, **given)
        raise
    want = group_error(weight, group)
    if number(got) is None:
        expect("zeros" not in case, "zero_group", got=got, want=want, **given)
        expect(False, "form", got=got, **given)
    tolerance = {"rel": 1e-4}  # float32 will do; groups of one have no error but rounding's own
    if close(got, want, **tolerance) or (group == 1 and abs(float(got)) < 1e-5):
        return
    for mistake, value in _mistakes(weight, group):
        expect(not close(got, value, rel=1e-5), mistake, got=got, want=want, **given)
    expect(False, "error", got=got, want=want, **given)


def _mistakes(weight: Tensor, group: int) -> Iterable[tuple[str, float]]:
    """What typical mistakes give, by the failure that names them."""
    import torch

    size, parts = weight.abs(), weight.split(group, 1)
    own = torch.cat([part.abs().amax(1, keepdim=True).expand_as(part) for part in parts], 1)
    rounded = _round(weight, own)
    error = rounded - weight
    whole = weight.shape[1] // group * group
    if 0 < whole < weight.shape[1]:
        kept = torch.cat([rounded[:, :whole], weight[:, whole:]], 1)
        yield "dropped", _relative(rounded[:, :whole], weight[:, :whole])
        yield "dropped", _relative(kept, weight)
        yield "dropped", _relative(kept * (torch.arange(weight.shape[1]) < whole), weight)
        yield "dropped", (error[:, :whole].norm() / weight.norm()).item()
    yield "per_row", _relative(_round(weight, size.amax(1, keepdim=True)), weight)
    yield "per_tensor", _relative(_round(weight, size.max()), weight)
    yield "for_all_rows", _relative(torch.cat([_round(part, part.abs().max()) for part in parts], 1), weight)
    yield "per_column", _relative(_round(weight, size.amax(0)), weight)
    pieces = [_round(piece, piece.abs().max()) for piece in weight.flatten().split(group)]
    yield "across_rows", _relative(torch.cat(pieces).view_as(weight), weight)
    chunks = [_round(part, part.abs().amax(1, keepdim=True)) for part in weight.chunk(group, 1)]
    yield "number_of_groups", _relative(torch.cat(chunks, 1), weight)
    down = [_round(part, part.abs().amax(0)) for part in weight.split(group)]
    yield "rows_grouped", _relative(torch.cat(down), weight)
    yield "squared", _relative(rounded, weight) ** 2
    yield "absolute", error.square().mean().sqrt().item()
    yield "of_largest", (error.square().mean().sqrt() / size.max()).item()
    yield "mean_absolute", (error.abs().sum() / size.sum()).item()
    yield "over_8", _relative(_round(weight, own, 8, -8), weight)
    yield "over_8", _relative((weight / own * 8).round().clamp(-8, 7) * own / 8, weight)
    yield "over_15", _relative((weight / own * 15).round().clamp(-15, 15) * own / 15, weight)
    yield "over_15", _relative((weight / own * 15).round().clamp(-7, 7) * own / 15, weight)
    yield "truncated", _relative(_round(weight, own, cut="trunc"), weight)
    yield "truncated", _relative(_round(weight, own, cut="floor"), weight)
    each = [(_relative(_round(part, part.abs().amax(1, keepdim=True)), part)) for part in parts]
    yield "mean_of_groups", sum(each) / len(each)
    cells = torch.cat([(rounded - weight).split(group, 1)[i].norm(dim=1) / part.norm(dim=1)
                       for i, part in enumerate(parts)])  # fmt: skip
    yield "mean_of_groups", cells.mean().item()


EXERCISES = [
    Exercise(
        name="group_error",
        notebook="02_compress",
        level="extra",
        points=2,
        minutes=6,
        check=_check,
        reference=group_error,
        keeps_arguments=True,
    )
]
