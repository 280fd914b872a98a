"""Exercise: a softmax that sees its scores tile by tile (Milakov & Gimelshein 2018)."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from labkit.course.exercise import Exercise, expect
from labkit.course.exercises.cache.tensors import as_tensor, normal

if TYPE_CHECKING:
    from torch import Tensor

INF = math.inf


def online_softmax(scores: Tensor, tile: int) -> tuple[Tensor, Tensor]:
    """Running maximum and sum after each tile (labkit's own answer)."""
    import torch

    top = torch.full(scores.shape[:1], -INF, dtype=scores.dtype, device=scores.device)
    total = torch.zeros_like(top)
    tops, totals = [], []
    for part in scores.split(tile, dim=-1):
        higher = torch.maximum(top, part.amax(-1))
        safe = torch.where(higher == -INF, torch.zeros_like(higher), higher)
        total = total * (top - safe).exp() + (part - safe[:, None]).exp().sum(-1)
        top = higher
        tops.append(top)
        totals.append(total)
    return torch.stack(tops, -1), torch.stack(totals, -1)


def _check(fn: Callable, rng: random.Random) -> None:
    tile, tiles, last = rng.randint(3, 5), rng.randint(3, 4), rng.randint(1, 2)
    shape = rng.randint(2, 3), tiles * tile + last
    plain = normal(rng, *shape, scale=3)
    _judge(fn, plain.sort(-1, descending=True).values, tile, "falling scores")
    _judge(fn, plain, tile, "scores around 0, a ragged last tile")
    _judge(fn, plain[:, : 2 * tile], tile, "two whole tiles")
    _judge(fn, plain.sort(-1).values, tile, "rising scores")
    for far in (900.0, -900.0):
        _judge(fn, plain + far, tile, f"scores around {far:.0f}")
    masked = plain.clone()
    masked[:, tile : 2 * tile] = -INF
    _judge(fn, masked, tile, "the second tile is masked out, all −inf")
    masked = plain.clone()
    masked[0, :tile] = -INF
    masked[-1] = -INF
    _judge(fn, masked, tile, "the first row begins with a masked tile, the last row is masked out")


def _judge(fn: Callable, scores: Tensor, tile: int, case: str) -> None:
    import torch

    rows, width = scores.shape
    tiles = -(-width // tile)
    given: dict[str, Any] = {"rows": rows, "width": width, "tile": tile, "tiles": tiles, "case": case}
    got = fn(scores, tile)
    expect(isinstance(got, list | tuple) and len(got) == 2, "form", got=got, **given)
    tops, totals = as_tensor(got[0]), as_tensor(got[1])
    shaped = all(each is not None and list(each.shape) == [rows, tiles] for each in (tops, totals))
    expect(shaped, "form", got=got, **given)
    assert tops is not None and totals is not None
    finite = bool((totals.isfinite() & (totals > 0)).all())
    alias = tiles > 1 and finite and bool((totals[:, 1:] == totals[:, :-1]).all())
    expect(not alias, "in_place", **given)
    ends = [min(width, (number + 1) * tile) for number in range(tiles)]
    want = torch.stack([scores[:, :end].amax(-1) for end in ends], -1)
    alone = torch.stack([part.amax(-1) for part in scores.split(tile, -1)], -1)
    for row in range(rows):
        for number in range(tiles):
            after = {**given, "row": row, "after": number + 1, "seen": ends[number]}
            top, right = tops[row, number].item(), want[row, number].item()
            after |= {"top": top, "right": right, "own": alone[row, number].item()}
            expect(_same(top, right) or not _same(top, after["own"]), "top_of_tile", **after)
            expect(_same(top, right), "top", **after)
            _judge_total(scores[row], tile, number, totals[row, number].item(), after)


def _judge_total(row: Tensor, tile: int, number: int, got: float, after: dict[str, Any]) -> None:
    """The sum after tile `number` of one row."""
    maximum = after["right"]
    parts = list(row.split(tile))[: number + 1]
    want = 0.0 if maximum == -INF else _sum(row[: after["seen"]], maximum)
    fields = {**after, "got": got, "want": want, "which": number + 1}
    expect(not math.isnan(got), "masked_nan" if maximum == -INF or _masked(parts) else "nan", **fields)
    expect(math.isfinite(got), "overflow", **fields)
    if math.isclose(got, want, rel_tol=1e-4, abs_tol=1e-12):
        return
    if maximum == -INF:
        expect(False, "masked_count", **fields)
    running, total, flipped, late = -INF, 0.0, 0.0, 0.0
    for part in parts:
        higher = max(running, part.amax().item())
        own = _sum(part, higher)
        total += own  # as if the sum before were still right
        factor = math.exp(min(700.0, running - higher)) if running > -INF else 0.0
        flipped = flipped / factor + own if factor > 1e-300 else own
        late = late * factor + (_sum(part, running) if running > -INF else own)
        running = higher
    typical = {
        "not_rescaled": total,
        "wrong_way": flipped,
        "old_top": late,
        "own_tops": sum(_sum(part, part.amax().item()) for part in parts),
        "last_tile_only": _sum(parts[-1], maximum),
        "not_shifted": _sum(row[: after["seen"]], 0.0),
    }
    for key, value in typical.items():
        known = math.isclose(got, value, rel_tol=1e-4) and not math.isclose(value, want, rel_tol=1e-3)
        expect(not known, key, **fields)
    expect(False, "total", **fields)


def _sum(part: Tensor, shift: float) -> float:
    """Σ exp(score − shift); a tile of −inf gives 0."""
    return 0.0 if shift == -INF else (part.double() - shift).clamp(max=700).exp().sum().item()


def _masked(parts: list[Tensor]) -> bool:
    return any(part.amax().item() == -INF for part in parts)


def _same(got: float, want: float) -> bool:
    return got == want or math.isclose(got, want, rel_tol=1e-5, abs_tol=1e-6)


EXERCISES = [
    Exercise(
        name="online_softmax",
        notebook="05_fuse",
        level="core",
        points=2,
        minutes=8,
        check=_check,
        reference=online_softmax,
    )
]
