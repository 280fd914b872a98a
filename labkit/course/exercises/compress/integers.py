"""Exercise: a linear layer in whole numbers, its input rounded row by row (W8A8)."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from labkit.course.exercise import AnswerRaised, Exercise, expect
from labkit.course.exercises.cache.tensors import near, normal

if TYPE_CHECKING:
    from torch import Tensor


def int8_linear(x: Tensor, weight: Tensor, weight_scales: Tensor) -> Tensor:
    """x [rows, inputs] times an int8 weight [outputs, inputs], in whole numbers (labkit's own answer)."""
    import torch

    scales = x.abs().amax(1, keepdim=True) / 127
    scales = torch.where(scales > 0, scales, torch.ones_like(scales))
    sums = (x / scales).round().to(torch.int32) @ weight.to(torch.int32).T
    return sums * scales * weight_scales


def _check(fn: Callable, rng: random.Random) -> None:
    rows, inputs = rng.randint(3, 5), rng.randint(12, 17)
    _judge(fn, rng, _rows(rng, rows, inputs), rows, "as many rows as outputs")
    _judge(fn, rng, _rows(rng, rows, inputs), rows + 2, "more outputs than rows")
    empty = _rows(rng, rows, inputs)
    empty[rng.randrange(rows)] = 0
    _judge(fn, rng, empty, rows + 1, "one row all zeros")
    _judge(fn, rng, _rows(rng, 1, inputs), rows, "one row")


def _rows(rng: random.Random, rows: int, inputs: int) -> Tensor:
    """Rows of different loudness; in every second one the largest number is negative."""
    x = normal(rng, rows, inputs)
    for number, row in enumerate(x):
        row *= 4**number
        row[rng.randrange(inputs)] = (1.5 if number % 2 else -1.5) * row.abs().max()
    return x


def _judge(fn: Callable, rng: random.Random, x: Tensor, outputs: int, case: str) -> None:
    import torch

    (rows, inputs), noise = x.shape, torch.Generator().manual_seed(rng.getrandbits(31))
    weight = torch.randint(-127, 128, (outputs, inputs), generator=noise).to(torch.int8)
    weight_scales = torch.tensor([rng.uniform(0.003, 0.02) for _ in range(outputs)], dtype=x.dtype)
    given: dict[str, Any] = {"rows": rows, "inputs": inputs, "outputs": outputs, "case": case}
    try:
        got = fn(x, weight, weight_scales)
    except AnswerRaised as raised:
        expect("same dtype" not in raised.message, "dtypes", said=raised.message, **given)
        raise
    shaped = isinstance(got, torch.Tensor) and list(got.shape) == [rows, outputs]
    expect(shaped, "form", got=got, **given)
    expect(got.is_floating_point(), "form", got=got, **given)
    want = int8_linear(x, weight, weight_scales)
    if _near(got, want):
        return
    apart = ((got.double() - want).abs() > 1e-4 * (want.abs().amax(1, keepdim=True) + 1e-9)) | ~got.isfinite()
    row, output = divmod(int(apart.flatten().float().argmax()), outputs)
    here = {"row": row, "output": output, "got": got[row, output], "want": want[row, output], **given}
    expect(bool(got.isfinite().all()) or "zeros" not in case, "zero_row", **here)
    for mistake, value in _mistakes(x, weight, weight_scales):
        expect(_near(value, want) or not _near(got, value), mistake, **here)
    expect(False, "values", **here)


def _near(got: Tensor, want: Tensor) -> bool:
    """Each row measured by its own largest: a quiet row counts as much as a loud one."""
    size = want.abs().amax(1, keepdim=True).clamp(min=1e-9)
    return near(got.double() / size, want / size, 1e-5)


def _mistakes(x: Tensor, weight: Tensor, weight_scales: Tensor) -> list[tuple[str, Tensor]]:
    """What typical mistakes give, by the failure that names them."""
    import torch

    size, matrix, by = x.abs(), weight.double().T, weight_scales[None]
    scales = (size.amax(1, keepdim=True) / 127).clamp(min=1e-300)
    sums = _sums(x, weight, scales)
    tensor, half = (size.max() / 127).clamp(min=1e-300), scales * 127 / 128
    signed = x.amax(1, keepdim=True) / 127
    free = (x / signed).round()
    bytes_ = free.to(torch.int32).to(torch.int8).double()
    found = [
        ("per_tensor", _sums(x, weight, tensor) * tensor * by),
        ("no_row_scale", sums * by),
        ("no_weight_scale", sums * scales),
        ("no_scales", sums),
        ("row_scale_twice", sums * scales**2 * by),
        ("truncated", (x / scales).trunc() @ matrix * scales * by),
        ("not_rounded", x @ matrix * by),
        ("wrapped", sums.to(torch.int32).to(torch.int8).double() * scales * by),
        ("over_128", _sums(x, weight, half) * half * by),
        ("over_128", (x / half).round().clamp(-128, 127) @ matrix * half * by),
        ("over_128", (x / half).round() @ matrix * half * by),
        ("signed", free @ matrix * signed * by),
        ("signed", free.clamp(-127, 127) @ matrix * signed * by),
        ("signed", free.clamp(-128, 127) @ matrix * signed * by),
        ("signed", bytes_ @ matrix * signed * by),
    ]
    if len(x) == len(weight):
        found += [("across", sums * scales.T * by), ("weights_across", sums * scales * by.T)]
        found.append(("transposed", (sums * scales * by).T))
    return found


def _sums(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    return (x / scales).round().clamp(-127, 127) @ weight.double().T


EXERCISES = [
    Exercise(
        name="int8_linear",
        notebook="02_compress",
        level="extra",
        points=2,
        minutes=7,
        check=_check,
        reference=int8_linear,
        keeps_arguments=True,
    )
]
