"""The loop: prune a little, recover, measure speed and quality, until it is fast enough or no longer good enough."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from labkit.compress.prune.importance import importance
from labkit.compress.prune.recover import recover
from labkit.compress.prune.refit import refit
from labkit.compress.prune.shrink import Counts, choose, counts, shrink
from labkit.compress.prune.units import units
from labkit.errors import LabkitError
from labkit.models import LM
from labkit.profile.loop import decode_steps
from labkit.quality import Interval, change, score
from labkit.timing import Measurement, compare

PROMPT = 64
"""Tokens before the decode steps that are timed."""


@dataclass(frozen=True)
class Round:
    """One turn of the loop; number 0 is the model as it came.

    Args:
        left: heads and neurons of each layer, and the share of their weights that is gone.
        bytes: of all weights.
        speedup: how many times as fast a decode step is as at the start, measured alternating.
        perplexity: on the text, after recovery.
        ratio: that perplexity over the one at the start.
        change: of bits per byte since the start, with its interval.
    """

    number: int
    left: Counts
    bytes: int
    speedup: float
    perplexity: float
    ratio: float
    change: Interval


@dataclass(frozen=True)
class Loop:
    """How it went.

    Args:
        lm: the fastest model that was still good enough; the one that came in if none was.
        rounds: all, the last may be the one that was too bad.
        stopped: "target", "floor" (quality), "small" (nothing more can be removed) or "rounds".
    """

    lm: LM
    rounds: tuple[Round, ...]
    stopped: str


def until(
    lm: LM,
    tokens: Tensor,
    text: str,
    *,
    target: float = 1.5,
    floor: float = 1.25,
    step: float = 0.1,
    rounds: int = 8,
    kind: str = "taylor",
    remove: str | None = None,
    sequences: int | None = 64,
    repair: bool = True,
    seed: int = 0,
    speed: Callable[[LM, LM], float] | None = None,
    recovery: dict[str, Any] | None = None,
) -> Loop:
    """Remove more heads and neurons each round, judged anew on the smaller model, until a speed is reached.

    Args:
        lm: stays as it is.
        tokens: LongTensor [n] of training text, for importance, repair and recovery.
        text: to measure quality on.
        target: the decode step is to be this many times as fast as that of `lm`.
        floor: the largest perplexity that is still good enough, as a multiple of that of `lm`.
        step: share of the heads' and neurons' weights of `lm` that a round removes.
        rounds: the most rounds.
        kind: of importance.
        remove: as in `counts`.
        sequences: that importance and repair read; None means all.
        repair: fit the projections anew before training (see refit.py).
        seed: of random importance and of the training's windows.
        speed: how many times as fast the second model is as the first; None measures decode steps.
        recovery: further settings of `recover`, such as {"steps": 100}; the learning rate falls anew each round.

    Raises:
        LabkitError: settings that make no sense, or what the parts raise.
    """
    if not 0 < step < 1 or rounds < 1 or target <= 0 or floor <= 0:
        raise LabkitError(
            f"No loop runs with step {step}, {rounds} rounds, target {target} and floor {floor}.",
            "Give 0 < step < 1, rounds ≥ 1, and target and floor above 0.",
        )
    faster, settings = speed or decode_speedup, dict(recovery or {})
    length = int(settings.get("length", 256))
    start, base = counts(lm, 0.0), score(lm, text)
    done = [Round(0, start, lm.weight_bytes, 1.0, base.perplexity, 1.0, Interval(0.0, 0.0, 0.0))]
    best, current, left = lm, lm, start
    for number in range(1, rounds + 1):
        share = number * step
        wanted = _at_most(lm, counts(lm, share, remove=remove), left) if share < 1 else left
        if _units(wanted) == _units(left):
            return Loop(best, tuple(done), "small")
        few = None if sequences is None else tokens[: sequences * length]
        scores = importance(current, tokens, kind, seed=seed + number, length=length, sequences=sequences)
        smaller = shrink(current, *choose(scores, wanted))
        smaller.name = f"{lm.name} ({wanted.removed:.0%} pruned)"
        if repair:
            refit(current, smaller, tokens if few is None else few, length=length)
        recover(smaller, tokens, **{"seed": seed + number, **settings})
        current, left = smaller, wanted
        now = score(current, text)
        ratio, gained = now.perplexity / base.perplexity, faster(lm, current)
        facts = (current.weight_bytes, gained, now.perplexity, ratio, change(base, now))
        done.append(Round(number, left, *facts))
        if ratio > floor:
            return Loop(best, tuple(done), "floor")
        best = current
        if gained >= target:
            return Loop(best, tuple(done), "target")
    return Loop(best, tuple(done), "rounds")


def decode_speedup(lm: LM, smaller: LM, **settings: Any) -> float:
    """Median time of a decode step of `lm` over that of `smaller`, measured alternating in one run."""
    taken = decode_times({"before": lm, "after": smaller}, **settings)
    return taken["before"].median / taken["after"].median


def decode_times(models: dict[str, LM], *, steps: int = 8, repeats: int = 15) -> dict[str, Measurement]:
    """Times of `steps` decode steps of each model through transformers' own code, batch 1, measured alternating."""
    first = next(iter(models.values()))
    prompt = [index % 97 + 1 for index in range(PROMPT)]
    runs = {name: decode_steps(lm, prompt, steps) for name, lm in models.items()}
    return compare(dict(runs), device=first.device, repeats=repeats)


def _at_most(lm: LM, wanted: Counts, left: Counts) -> Counts:
    """Those counts, but no more of anything than is left: when heads go, some neurons that are gone could stay."""
    found = units(lm)
    heads, kv_heads = min((wanted.heads, wanted.kv_heads), (left.heads, left.kv_heads))
    neurons = min(wanted.neurons, left.neurons)
    whole = found.weights(found.heads, found.kv_heads, found.neurons)
    return Counts(heads, kv_heads, neurons, 1 - found.weights(heads, kv_heads, neurons) / whole)


def _units(left: Counts) -> tuple[int, int, int]:
    return left.heads, left.kv_heads, left.neurons
