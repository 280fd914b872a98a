"""Exercises: two numbers of 4 bits in a byte, and out again."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from labkit.course.exercise import AnswerRaised, Exercise, expect

if TYPE_CHECKING:
    from torch import Tensor


def pack_int4(numbers: Tensor) -> Tensor:
    """uint8 [rows, (columns + 1) // 2] of int8 [rows, columns] (labkit's own answer)."""
    import torch
    import torch.nn.functional as F

    stored = (numbers + 8).to(torch.uint8)
    half = (numbers.shape[1] + 1) // 2
    low, high = stored[:, :half], F.pad(stored[:, half:], (0, numbers.shape[1] % 2))
    return low | high << 4


def unpack_int4(packed: Tensor, columns: int) -> Tensor:
    """int8 [rows, columns] of what `pack_int4` made (labkit's own answer)."""
    import torch

    stored = torch.cat([packed & 15, packed >> 4], 1)
    return stored[:, :columns].to(torch.int8) - 8


def _check_pack(fn: Callable, rng: random.Random) -> None:
    even, odd = 2 * rng.randint(3, 6), 2 * rng.randint(3, 6) + 1
    for rows, columns in ((5, even), (3, odd), (2, 1), (1, even + 2)):
        _judge_pack(fn, _numbers(rng, rows, columns))


def _numbers(rng: random.Random, rows: int, columns: int) -> Tensor:
    """−8 … 7; whatever is mixed up shows, for the first row begins with 4, −3, 6, 1 and is followed by none of them."""
    import torch

    drawn = [
        [rng.choice([-8, -7, -6, -5, -4, -2, -1, 2, 3, 5, 7]) for _ in range(columns)] for _ in range(rows)
    ]
    drawn[0][:4] = [4, -3, 6, 1][:columns]
    return torch.tensor(drawn, dtype=torch.int8)


def _judge_pack(fn: Callable, numbers: Tensor) -> None:
    import torch

    rows, columns = numbers.shape
    half, odd = (columns + 1) // 2, columns % 2
    given: dict[str, Any] = {"rows": rows, "columns": columns, "half": half}
    try:
        got = fn(numbers)
    except AnswerRaised as raised:
        told = any(said in raised.message for said in ("must match", "invalid for input", "unflatten"))
        expect(not (odd and told), "odd", said=raised.message, **given)
        raise
    expect(isinstance(got, torch.Tensor), "form", got=got, **given)
    shape = list(got.shape)
    expect(not (odd and shape == [rows, half - 1]), "odd", said=f"[{rows}, {half - 1}] bytes", **given)
    expect(shape != [rows, columns] or columns == half, "not_packed", **given)
    expect(shape != [(rows + 1) // 2, columns] or rows == 1, "rows_packed", got=shape, **given)
    expect(shape == [rows, half], "form", got=got, **given)
    expect(got.dtype == torch.uint8, "dtype", got=str(got.dtype), **given)
    want, spare = pack_int4(numbers), torch.full_like(got, 255)
    if odd:
        spare[:, -1] = 15  # what the last high half holds does not matter
    wrong = (got & spare) != (want & spare)
    if not bool(wrong.any()):
        return
    row, byte = divmod(int(wrong.flatten().float().argmax()), half)
    high = numbers[row, byte + half].item() if byte + half < columns else None
    here = {"row": row, "byte": byte, "low": numbers[row, byte].item(), "high": high, **given}
    here |= {"got": _bits(got[row, byte]), "want": _bits(want[row, byte])}
    for mistake, value in _packing_mistakes(numbers, half):
        expect(not bool(((got & spare) == (value & spare)).all()), mistake, **here)
    expect(False, "bytes", **here)


def _bits(byte: Tensor) -> str:
    """A byte as it is written in binary, its halves apart."""
    return f"{int(byte) >> 4:04b} {int(byte) & 15:04b}"


def _packing_mistakes(numbers: Tensor, half: int) -> list[tuple[str, Tensor]]:
    import torch
    import torch.nn.functional as F

    wide = F.pad(numbers, (0, numbers.shape[1] % 2))
    stored, plain = (wide + 8).to(torch.uint8), wide.view(torch.uint8)
    low, high, even, one = stored[:, :half], stored[:, half:], stored[:, ::2], stored[:, 1::2]
    raw, rest = plain[:, :half], plain[:, half:]
    return [
        ("swapped", low << 4 | high),
        ("neighbours", even | one << 4),
        ("neighbours", even << 4 | one),
        ("no_offset", raw & 15 | rest << 4),
        ("no_offset", raw | rest << 4),
        ("no_offset", raw + (rest << 4)),
        ("not_shifted", low | high),
        ("not_shifted", low + high),
        ("low_only", low),
        ("low_only", low | torch.zeros_like(low)),
    ]


def _check_unpack(fn: Callable, rng: random.Random) -> None:
    even, odd = 2 * rng.randint(3, 6), 2 * rng.randint(3, 6) + 1
    for rows, columns in ((5, even), (3, odd), (2, 1), (1, even + 2)):
        numbers = _numbers(rng, rows, columns)
        packed = pack_int4(numbers)
        if columns % 2:
            packed[:, -1] |= rng.randrange(1, 16) << 4  # the spare half may hold anything
        _judge_unpack(fn, packed, numbers)


def _judge_unpack(fn: Callable, packed: Tensor, numbers: Tensor) -> None:
    import torch

    rows, columns = numbers.shape
    half = packed.shape[1]
    given: dict[str, Any] = {"rows": rows, "columns": columns, "half": half}
    got = fn(packed, columns)
    expect(isinstance(got, torch.Tensor), "form", got=got, **given)
    shape = list(got.shape)
    expect(shape != [rows, 2 * half] or 2 * half == columns, "not_cut", got=shape, **given)
    expect(shape == [rows, columns], "form", got=got, **given)
    expect(got.dtype == torch.int8, "dtype", got=str(got.dtype), **given)
    wrong = got != numbers
    if not bool(wrong.any()):
        return
    row, column = divmod(int(wrong.flatten().float().argmax()), columns)
    byte, place = column % half, "high" if column >= half else "low"
    here = {"row": row, "column": column, "byte": byte, "place": place, "bits": _bits(packed[row, byte])}
    here |= {"got": got[row, column].item(), "want": numbers[row, column].item(), **given}
    low, high = packed & 15, packed >> 4
    mistakes = [
        ("swapped", torch.cat([high, low], 1) - 8),
        ("neighbours", torch.stack([low, high], 2).flatten(1) - 8),
        ("neighbours", torch.stack([high, low], 2).flatten(1) - 8),
        ("no_offset", torch.cat([low, high], 1)),
        ("signed", torch.cat([low, high], 1) - 16 * (torch.cat([low, high], 1) > 7).to(torch.uint8)),
        ("not_masked", torch.cat([packed, high], 1) - 8),
        ("not_shifted", torch.cat([low, packed & 240], 1) - 8),
    ]
    for mistake, value in mistakes:
        expect(not torch.equal(got, value[:, :columns].view(torch.int8)), mistake, **here)
    expect(False, "numbers", **here)


EXERCISES = [
    Exercise(
        name="pack_int4",
        notebook="02_compress",
        level="core",
        points=2,
        minutes=4,
        check=_check_pack,
        reference=pack_int4,
        keeps_arguments=True,
    ),
    Exercise(
        name="unpack_int4",
        notebook="02_compress",
        level="extra",
        points=1,
        minutes=3,
        check=_check_unpack,
        reference=unpack_int4,
        keeps_arguments=True,
    ),
]
