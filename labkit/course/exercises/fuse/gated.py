"""Exercise: the gated activation of an MLP as one Triton kernel."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from labkit.course.exercise import Exercise, expect
from labkit.course.exercises.cache.tensors import normal
from labkit.course.exercises.fuse.launching import agree, launched, other_outputs, result
from labkit.course.exercises.fuse.own import OwnKernel

if TYPE_CHECKING:
    from torch import Tensor

silu_mul = OwnKernel("silu_mul")


def _check(fn: Callable, rng: random.Random) -> None:
    import torch

    single, half = torch.float32, torch.float16
    _judge(fn, rng, rng.randint(3, 4), rng.choice([37, 43, 53]), 16, single)
    _judge(fn, rng, rng.randint(2, 3), 2 * 32, 32, half)
    _judge(fn, rng, rng.randint(2, 5), rng.choice([11, 19, 21]), 8, half)
    _judge(fn, rng, 1, rng.choice([5, 7]), 16, single)


def _judge(fn: Callable, rng: random.Random, tokens: int, columns: int, tile: int, dtype: Any) -> None:
    import torch

    gate, up = (normal(rng, tokens, columns, scale=4) for _ in range(2))
    gate.view(-1)[rng.randrange(gate.numel())] = 100  # exponentials of both signs overflow somewhere
    gate.view(-1)[rng.randrange(gate.numel())] = -100
    gate_up = torch.cat([gate, up], -1).to(dtype)
    out = torch.full((tokens, columns), torch.nan, dtype=dtype)
    tiles = -(-columns // tile)
    given: dict[str, Any] = {"tokens": tokens, "columns": columns, "tile": tile, "tiles": tiles}
    given |= {"dtype": str(dtype).removeprefix("torch."), "last": columns - (tiles - 1) * tile}
    got = launched(fn, (tokens, tiles), (gate_up, out, columns, tile), given)
    other_outputs(got, "out", given)
    found = result(got, "out", out, given)
    whole = gate_up.float()
    _judge_values(found, whole[:, :columns], whole[:, columns:], dtype, given)
    needed = {"read": gate_up.numel() * dtype.itemsize, "written": out.numel() * dtype.itemsize}
    moved = {"read": got["read"].get("gate_up", 0), "written": got["written"].get("out", 0)}
    given |= {"moved": moved, "needed": needed}
    reads_out = got["read"].get("out", 0)
    expect(not reads_out, "read_out", bytes=reads_out, **given)
    expect(moved["written"] <= needed["written"], "spilled", **given)
    expect(moved["read"] <= needed["read"], "read_more", **given)


def _judge_values(found: Tensor, gate: Tensor, up: Tensor, dtype: Any, given: dict[str, Any]) -> None:
    import torch

    exact = torch.nn.functional.silu(gate.double()) * up.double()
    want = exact.to(dtype).float()
    unwritten = int(found.isnan().sum())
    wide = 4e-3 if dtype == torch.float16 else 1e-5
    by = {name: value.to(dtype).float() for name, value in _mistakes(gate, up, exact, given).items()}
    if agree(found, want, wide):
        if dtype == torch.float16:
            _judge_rounding(found, gate, up, want, given)
        return
    apart = (found - want).abs().nan_to_num(torch.inf) > wide
    large = found.isnan() & (gate.abs() > 80)
    overflown = bool(large.any()) and unwritten == int(large.sum())
    # the first that is wrong; or the first NaN where those say what happened
    shown = large if overflown else apart
    row, column = divmod(int(shown.flatten().float().argmax()), given["columns"])
    tensors = {"gate": gate, "up": up, "got": found, "want": want}
    here = {name: tensor[row, column].item() for name, tensor in tensors.items()}
    here |= {"row": row, "column": column, "unwritten": unwritten, **given}
    for name, value in by.items():
        same = agree(found.nan_to_num(1e9), value.nan_to_num(1e9), wide)  # what is missing in both agrees
        expect(not same, name, **here)
    expect(not overflown, "overflow", **here)
    expect(not unwritten, "unwritten", **here)
    expect(False, "values", **here)


def _mistakes(gate: Tensor, up: Tensor, exact: Tensor, given: dict[str, Any]) -> dict[str, Tensor]:
    import torch

    gate, up = gate.double(), up.double()
    sigmoid, silu = torch.sigmoid, torch.nn.functional.silu
    tile, columns = given["tile"], given["columns"]
    first = torch.full_like(exact, torch.nan)
    first[:, :tile] = exact[:, :tile]  # each program wrote the first tile
    last = exact.clone()
    last[:, columns - columns % tile :] = torch.nan
    flat = torch.cat([gate, up], -1).flatten()
    rows = [flat[row * columns : row * columns + 2 * columns] for row in range(len(gate))]
    narrow = torch.stack(rows)
    return {
        "swapped": silu(up) * gate,
        "no_up": silu(gate),
        "no_gate": sigmoid(gate) * up,
        "no_silu": gate * up,
        "wrong_sign": gate * sigmoid(-gate) * up,
        "gelu": torch.nn.functional.gelu(gate) * up,
        "added": silu(gate) + up,
        "row_stride": silu(narrow[:, :columns]) * narrow[:, columns:],
        "gate_twice": silu(gate) * gate,
        "first_tile": first,
        "no_last_tile": last,
    }


def _judge_rounding(found: Tensor, gate: Tensor, up: Tensor, want: Tensor, given: dict[str, Any]) -> None:
    """float16 only: rounding once and rounding silu(gate) first differ in about every third number."""
    import torch

    half = torch.float16
    twice = (torch.nn.functional.silu(gate).to(half).float() * up).to(half).float()
    once_off, twice_off = int((found != want).sum()), int((found != twice).sum())
    fields = {"off": once_off, "count": found.numel(), **given}
    few = found.numel() // 20
    expect(once_off <= few or twice_off > few, "rounded_twice", **fields)
    expect(once_off <= few, "imprecise", **fields)


EXERCISES = [
    Exercise(
        name="silu_mul",
        notebook="05_fuse",
        level="core",
        points=3,
        minutes=10,
        check=_check,
        reference=silu_mul,
        needs=frozenset({"triton"}),
    )
]
