"""Exercise: a matrix rounded to few bits, one scale a row, and back."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from labkit.course.exercise import Exercise, expect
from labkit.course.exercises.cache.tensors import near, normal

if TYPE_CHECKING:
    from torch import Tensor


def quantise(weight: Tensor, bits: int, clip: float) -> tuple[Tensor, Tensor, Tensor]:
    """Whole numbers, a scale for each row, and the weights that they give back (labkit's own answer)."""
    import torch

    top = 2 ** (bits - 1) - 1
    scales = clip * weight.abs().amax(1) / top
    scales = torch.where(scales > 0, scales, torch.ones_like(scales))
    numbers = (weight / scales[:, None]).round().clamp(-top, top)
    return numbers.to(torch.int8), scales, numbers * scales[:, None]


def _check(fn: Callable, rng: random.Random) -> None:
    rows, columns = rng.randint(4, 6), rng.randint(8, 11)
    _judge(fn, _weight(rng, rows, rows), 8, 1.0, "as many rows as columns")
    loud = _weight(rng, rows, columns)
    loud[rng.randrange(rows)] *= 50
    _judge(fn, loud, 4, 1.0, "one row 50 times as large")
    clip = rng.uniform(0.6, 0.75)
    for bits in (4, rng.choice([3, 5, 6]), 8):
        _judge(fn, _weight(rng, rows, columns), bits, clip, f"the grid covers {clip:.0%} of a row's range")
    empty = _weight(rng, rows, columns)
    empty[rng.randrange(1, rows)] = 0
    _judge(fn, empty, rng.choice([4, 8]), 1.0, "one row all zeros")
    halves = _weight(rng, rows, columns)
    halves = (halves * 10).round().clamp(-13, 13) / 2  # half of them lie in the middle between two numbers
    halves[:, 0] = -7
    for row, values in enumerate(halves):
        values *= 2**row
    _judge(fn, halves, 4, 1.0, "many exact halves")


def _weight(rng: random.Random, rows: int, columns: int) -> Tensor:
    """Random numbers; the largest of all is negative and lies in the first row, not in the first column."""
    weight = normal(rng, rows, columns)
    weight[0, rng.randrange(1, columns)] = -1.5 * weight.abs().max()
    return weight


def _judge(fn: Callable, weight: Tensor, bits: int, clip: float, case: str) -> None:
    import torch

    given: dict[str, Any] = {"shape": list(weight.shape), "bits": bits, "clip": clip, "case": case}
    got = fn(weight, bits, clip)
    three = isinstance(got, list | tuple) and len(got) == 3
    expect(three and all(isinstance(each, torch.Tensor) for each in got), "form", got=got, **given)
    numbers, scales, restored = got
    expect(numbers.shape == weight.shape == restored.shape, "form", got=got, **given)
    top = 2 ** (bits - 1) - 1
    given["top"] = top
    _judge_scales(scales, weight, bits, clip, given)
    expect(numbers.dtype == torch.int8, "dtype", got=str(numbers.dtype), **given)
    _judge_numbers(numbers.double(), weight, scales.double(), given)
    want = numbers.double() * scales.double()[:, None]
    expect(near(restored, want, 1e-5) or not near(restored, numbers.double()), "not_scaled", **given)
    expect(near(restored, want, 1e-5) or not near(restored, weight, 1e-5), "not_rounded", **given)
    expect(near(restored, want, 1e-5), "restored", got=restored, want=want, **given)


def _judge_scales(scales: Tensor, weight: Tensor, bits: int, clip: float, given: dict[str, Any]) -> None:
    import torch

    size, rows, top = weight.abs(), len(weight), given["top"]
    want, found = clip * size.amax(1) / top, scales.double()
    shape = list(found.shape)
    one = found.numel() == 1 or (found.numel() == rows and near(found, found.flatten()[:1].expand_as(found)))
    expect(not one, "per_tensor", got=scales, want=want, **given)
    by_column = near(found.flatten(), clip * size.amax(0) / top, 1e-5)
    expect(not by_column or near(found, want, 1e-5), "per_column", got=shape, want=[rows], **given)
    expect(shape != [rows, 1], "kept_axis", got=shape, want=[rows], **given)
    expect(shape == [rows], "form", got=scales, **given)
    used = want > 0
    silent = found[~used]
    expect(bool((silent == 1).all()), "zero_row", got=silent, row=int(used.float().argmin()), **given)
    expect(bool(found.isfinite().all()), "not_finite", got=scales, **given)
    found, want, weight = found[used], want[used], weight[used]
    if near(found, want, 1e-5):
        return
    signed = clip * weight.amax(1) / top
    typical = {
        "clip_ignored": want / clip,
        "inverted": 1 / want,
        "signed": torch.where(signed > 0, signed, 1.0),
        "half_range": want * top / (top + 1),
        "whole_range": want * top / (2 * top + 1),
        "always_127": want * top / 127,
        "affine": clip * (weight.amax(1) - weight.amin(1)) / (2 * top + 1),
    }
    for mistake, value in typical.items():
        known = near(found, value, 1e-6) and not near(value, want, 1e-5)
        expect(not known, mistake, got=found, want=want, **given)
    expect(False, "scales", got=found, want=want, **given)


def _judge_numbers(numbers: Tensor, weight: Tensor, scales: Tensor, given: dict[str, Any]) -> None:
    """The whole numbers against weight ÷ scale."""
    import torch

    top, steps = given["top"], weight / scales[:, None]
    right = steps.clamp(-top, top)
    fits = (numbers - right).abs() <= 0.501  # an exact half may go either way
    inside = numbers.abs() <= top
    if bool((fits & inside).all()):
        return
    place = int((~(fits & inside)).flatten().float().argmax())
    here = {"got": int(numbers.flatten()[place]), "ratio": steps.flatten()[place].item(), **given}
    here |= {"row": place // steps.shape[1], "column": place % steps.shape[1]}
    lowest = bool(((numbers >= -top - 1) & (numbers <= top)).all()) and not bool(inside.all())
    expect(not lowest, "lowest", **here)
    if len(scales) == weight.shape[1]:
        turned = (weight / scales).round()
        mixed = near(numbers, turned.clamp(-top, top)) or near(numbers, turned.to(torch.int8).double())
        expect(not mixed, "across", **here)
    for mistake, value in (("truncated", right.trunc()), ("floored", right.floor())):
        expect(not near(numbers, value), mistake, **here)
    whole = steps.round()
    beyond = (whole.abs() > top) & ((numbers - whole).abs() % 256 < 1)  # int8 begins again at −128
    expect(not bool((beyond & ~(fits & inside)).any()), "not_clamped", **here)
    expect(False, "numbers", **here)


EXERCISES = [
    Exercise(
        name="quantise",
        notebook="02_compress",
        level="core",
        points=2,
        minutes=6,
        check=_check,
        reference=quantise,
        keeps_arguments=True,
    )
]
