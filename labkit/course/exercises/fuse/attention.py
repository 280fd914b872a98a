"""Exercise: a small fused attention in Triton."""

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

tile_attention = OwnKernel("tile_attention")

HIGH = "three tiles, the last one ragged, scores around 150"
LOW = "scores around −150"


def _check(fn: Callable, rng: random.Random) -> None:
    import torch

    cases = (
        (rng.randint(5, 12), 32, 3.0, "one tile, not full"),
        (2 * 16, 16, 1.0, "two whole tiles"),
        (rng.randint(35, 44), 32, 10.0, HIGH),
        (rng.randint(18, 30), 16, 1.0, LOW),
    )
    for tokens, dim, loud, case in cases:
        query, key, value = (normal(rng, tokens, dim).float() for _ in range(3))
        query, scale = query * loud, dim**-0.5 * rng.uniform(0.7, 1.4)
        middle = {LOW: -150.0, HIGH: 150.0}.get(
            case
        )  # exponentials alone are 0 there in float32, or infinite
        if middle is not None:
            query[:, 0], key[:, 0] = middle / scale, 1.0
        given: dict[str, Any] = {"tokens": tokens, "dim": dim, "tile": 16, "case": case}
        given |= {"tiles": -(-tokens // 16), "scale": scale}
        out = torch.full_like(query, torch.nan)
        arguments = (query, key, value, out, tokens, scale, dim, 16)
        got = launched(fn, (given["tiles"],), arguments, given)
        other_outputs(got, "out", given)
        _judge(result(got, "out", out, given), query, key, value, given)
        given |= {
            "moved": got["written"]["out"],
            "needed": out.nbytes,
            "read_scores": got["read"].get("out", 0),
        }
        expect(not given["read_scores"], "read_out", **given)
        expect(given["moved"] <= given["needed"], "spilled", **given)
        seen = sum(
            min(tokens, 16 * (number + 1)) for number in range(given["tiles"])
        )  # keys, by each program
        given |= {"keys": got["read"].get("k", 0), "enough": seen * dim * 4}
        expect(given["keys"] <= given["enough"], "read_more", **given)


def _judge(found: Tensor, query: Tensor, key: Tensor, value: Tensor, given: dict[str, Any]) -> None:
    import torch

    query, key, value = query.double(), key.double(), value.double()
    scores = query @ key.T * given["scale"]
    seen = torch.ones_like(scores, dtype=torch.bool).tril()
    want = _mix(scores, seen, value)
    if agree(found, want, 1e-4):
        return
    apart = (found - want).abs().nan_to_num(torch.inf).amax(-1)
    row = int((apart > 1e-4).float().argmax())
    bad = int(found.isnan().any(-1).sum())
    here = {"row": row, "got": found[row], "want": want[row], "bad": bad, **given}
    expect(not (bad and given["case"] == LOW), "low", **here)  # all other cases were right
    for name, output in _mistakes(scores, seen, value, query, key):
        same = agree(found[1:], output[1:], 1e-4)  # a first row that sees nothing may be anything
        expect(not same or agree(output, want, 1e-3), name, **here)
    first = bool((apart[: given["tile"]] <= 1e-4).all())
    expect(not bad, "not_a_number", **here)
    expect(not first, "later_tiles", **here)
    expect(False, "values", **here)


def _mistakes(
    scores: Tensor, seen: Tensor, value: Tensor, query: Tensor, key: Tensor
) -> list[tuple[str, Tensor]]:
    import torch

    tile, tokens = 16, len(scores)
    every = torch.ones_like(seen)
    strict = seen.tril(-1)
    own = (torch.arange(tokens)[:, None] // tile) == (torch.arange(tokens) // tile)
    pad = -tokens % tile
    padded = torch.cat([scores.masked_fill(~seen, -torch.inf), scores.new_zeros(tokens, pad)], -1)
    leaky = padded.softmax(-1)[:, :tokens] @ value
    top = scores.masked_fill(~seen, -torch.inf).amax(-1, keepdim=True)
    unnormalised = ((scores - top).masked_fill(~seen, -torch.inf)).exp() @ value
    return [
        ("not_causal", _mix(scores, every, value)),
        ("not_itself", _mix(scores, strict, value)),
        ("own_tile_only", _mix(scores, seen & own, value)),
        ("turned", _mix(scores, seen.T, value)),
        ("no_scale", _mix(query @ key.T, seen, value)),
        ("keys_mixed", _mix(scores, seen, key)),
        ("ragged_keys", leaky),
        ("not_divided", unnormalised),
        ("zero_masked", (scores * seen).softmax(-1) @ value),
        ("zero_masked", _zero_masked(scores * seen, value, tile)),
        ("not_rescaled", _never_rescaled(scores.masked_fill(~seen, -torch.inf), value, tile)),
    ]


def _mix(scores: Tensor, seen: Tensor, value: Tensor) -> Tensor:
    import torch

    return scores.masked_fill(~seen, -torch.inf).softmax(-1) @ value


def _zero_masked(scores: Tensor, value: Tensor, tile: int) -> Tensor:
    """A masked score counts as 0 in the tiles that are walked, keys beyond the end with it."""
    import torch

    tokens, pad = len(scores), -len(scores) % tile
    whole = torch.cat([scores, scores.new_zeros(tokens, pad)], -1)
    own = torch.arange(tokens)[:, None] // tile
    later = torch.arange(tokens + pad) // tile > own
    return whole.masked_fill(later, -torch.inf).softmax(-1)[:, :tokens] @ value


def _never_rescaled(scores: Tensor, value: Tensor, tile: int) -> Tensor:
    """The sum is rescaled when the maximum rises, the mixed values are not."""
    import torch

    top = torch.full_like(scores[:, 0], -torch.inf)
    total, mixed = torch.zeros_like(top), torch.zeros_like(scores @ value)
    for part, values in zip(scores.split(tile, -1), value.split(tile), strict=True):
        higher = torch.maximum(top, part.amax(-1))
        weights = (part - higher[:, None]).exp()
        total = total * (top - higher).exp() + weights.sum(-1)
        mixed = mixed + weights @ values
        top = higher
    return mixed / total[:, None]


EXERCISES = [
    Exercise(
        name="tile_attention",
        notebook="05_fuse",
        level="extra",
        points=4,
        minutes=25,
        check=_check,
        reference=tile_attention,
        needs=frozenset({"triton"}),
    )
]
