"""A study of pruning: what each way to choose costs, what recovery brings back, what it all saves."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from labkit.compress.prune.importance import importance
from labkit.compress.prune.magnitude import magnitude
from labkit.compress.prune.recover import recover
from labkit.compress.prune.refit import refit
from labkit.compress.prune.rows import sequences_of
from labkit.compress.prune.shrink import Counts, choose, counts, shrink
from labkit.compress.prune.until import decode_times
from labkit.errors import LabkitError
from labkit.models import LM
from labkit.quality import Score, change, evaluation_text, score

KINDS = ("taylor", "magnitude", "random")
SHARES = (0.1, 0.2, 1 / 3, 0.5, 0.7)
"""Of weights set to zero without structure."""

POINTS = 20
"""Of a curve of recovery that are kept."""


def study(
    lm: LM,
    tokens: Tensor,
    *,
    share: float = 1 / 3,
    steps: int = 40,
    batch: int = 4,
    length: int = 256,
    lr: tuple[float, float] = (1e-3, 1e-4),
    sequences: int = 48,
    seeds: Sequence[int] = (0, 1, 2),
    repair: bool = True,
    text: str | None = None,
    held_out: int = 8,
    shares: Sequence[float] = SHARES,
    remove: str | None = None,
    autocast: bool = False,
    repeats: int = 15,
    say: Callable[[str], object] = lambda line: None,
) -> dict[str, Any]:
    """Prune by importance of each kind, at equal size and with equal recovery; unstructured pruning beside it.

    "taylor" is run once with each seed (they draw the training's windows), as is "random" (where they draw the units
    as well), "magnitude" with the first seed.

    Args:
        tokens: LongTensor [n] of training text; its last `held_out` sequences are kept out of everything but the
            curve of recovery.
        share: of the weights in heads and neurons that goes.
        steps, batch, length, lr, autocast: of recovery; equal for all. 0 steps measure the cut alone.
        sequences: that importance and repair read.
        seeds: as above.
        repair: fit projections anew between the cut and recovery.
        text: to measure quality on; None means the fixed evaluation text.
        shares: of unstructured pruning.
        say: is told what is under way.

    Returns:
        Plain values: "settings", "units", "base";
        "runs": one for each kind and seed, with perplexity and the change in bits per byte with its interval at
        "cut", "refit" and "recovered", some steps of training, and the loss on held-out text;
        "summary": by kind the mean perplexity at each stage, with the lowest and highest;
        "margins": bits per byte that each other run costs more than "taylor" of the same seed, with intervals;
        "unstructured"; and "speed": seconds of 8 decode steps of the whole and the smaller model, and of one with
        as many zeros as the last of `shares`, every repeat.

    Raises:
        LabkitError: no seeds, or what the parts raise.
    """
    if not seeds:
        raise LabkitError("A study without seeds has no runs.", "Give at least one seed.")
    words = evaluation_text() if text is None else text
    plan = _plan(lm, tokens, counts(lm, share, remove=remove), words, length, sequences, held_out, repair)
    settings: dict[str, Any] = {
        "steps": steps,
        "batch": batch,
        "length": length,
        "lr": lr,
        "autocast": autocast,
    }
    runs, scores, smaller = [], {}, lm
    for kind in KINDS:
        for seed in seeds[:1] if kind == "magnitude" else seeds:
            say(f"{kind}, seed {seed}")
            smaller, run, scores[kind, seed] = _run(lm, kind, seed, plan, {**settings, "seed": seed})
            runs.append(run)
    say("unstructured, speed")
    unstructured, sparse = _unstructured(lm, words, plan.base, shares)
    models = {"whole": lm, "pruned": smaller, **({} if sparse is None else {"zeros": sparse})}
    base = {"perplexity": plan.base.perplexity, "bits_per_byte": plan.base.bits_per_byte}
    return {
        "settings": {"share": share, "sequences": sequences, "tokens": len(tokens), **settings},
        "units": {"whole": dataclasses.asdict(counts(lm, 0.0)), "pruned": dataclasses.asdict(plan.keep)},
        "base": {**base, "bytes": lm.weight_bytes},
        "runs": runs,
        "summary": _summary(runs),
        "margins": _margins(scores),
        "unstructured": unstructured,
        "speed": {name: list(taken.seconds) for name, taken in decode_times(models, repeats=repeats).items()},
    }


@dataclasses.dataclass(frozen=True)
class _Plan:
    """What all runs have in common."""

    keep: Counts
    text: str
    base: Score
    used: Tensor
    probe: Tensor | None
    length: int
    sequences: int
    repair: bool


def _plan(
    lm: LM, tokens: Tensor, keep: Counts, text: str, length: int, sequences: int, held_out: int, repair: bool
) -> _Plan:
    rows = sequences_of(lm, tokens, length)
    if len(rows) < held_out + max(sequences, 1):
        raise LabkitError(
            f"{len(tokens)} tokens are too few for {sequences} sequences of {length} and {held_out} held out.",
            "Give more tokens, or ask for fewer sequences.",
        )
    used, probe = rows[: len(rows) - held_out].flatten(), rows[len(rows) - held_out :].flatten()
    return _Plan(keep, text, score(lm, text), used, probe if held_out else None, length, sequences, repair)


def _run(
    lm: LM, kind: str, seed: int, plan: _Plan, settings: dict[str, Any]
) -> tuple[LM, dict[str, Any], dict[str, Score]]:
    """Cut, repair, train; quality after each."""
    used, length = plan.used, plan.length
    importances = importance(lm, used, kind, seed=seed, length=length, sequences=plan.sequences)
    smaller = shrink(lm, *choose(importances, plan.keep))
    scores = {"cut": score(smaller, plan.text)}
    if plan.repair:
        refit(lm, smaller, used[: plan.sequences * length], length=length)
        scores["refit"] = score(smaller, plan.text)
    every = max(settings["steps"] // POINTS, 1)
    history = recover(smaller, used, held_out=plan.probe, every=every, **settings)
    scores["recovered"] = score(smaller, plan.text)
    run: dict[str, Any] = {"kind": kind, "seed": seed, "bytes": smaller.weight_bytes}
    run.update({stage: _quality(each, plan.base) for stage, each in scores.items()})
    run["steps"] = [dataclasses.asdict(step) for step in history.steps[::every]]
    run["held_out"] = [list(point) for point in history.held_out]
    return smaller, run, scores


def _margins(scores: dict[tuple[str, int], dict[str, Score]]) -> list[dict[str, Any]]:
    """How many bits per byte more the other choices cost than gradients', run against run, with intervals."""
    found = []
    for (kind, seed), others in scores.items():
        if kind == "taylor":
            continue
        for stage, ours in scores["taylor", seed].items():
            more = change(ours, others[stage])
            interval = {"mean": more.mean, "low": more.low, "high": more.high}
            found.append({"kind": kind, "seed": seed, "stage": stage, **interval})
    return found


def _quality(now: Score, base: Score) -> dict[str, float]:
    """Perplexity, and the change in bits per byte with its 95 % interval."""
    moved = change(base, now)
    found = {"perplexity": now.perplexity, "bits_per_byte": now.bits_per_byte}
    return {**found, "change": moved.mean, "low": moved.low, "high": moved.high}


def _unstructured(
    lm: LM, text: str, base: Score, shares: Sequence[float]
) -> tuple[list[dict[str, Any]], LM | None]:
    found, sparse = [], None
    for share in shares:
        sparse, achieved = magnitude(lm, share)
        sizes = {"dense": achieved.dense, "csr": achieved.csr, "bitmask": achieved.bitmask}
        found.append({"share": achieved.share, "bytes": sizes, **_quality(score(sparse, text), base)})
    return found, sparse


def _summary(runs: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """kind → stage → mean, lowest and highest perplexity over the seeds."""
    summary: dict[str, dict[str, dict[str, float]]] = {}
    for kind in dict.fromkeys(run["kind"] for run in runs):
        stages = [stage for stage in ("cut", "refit", "recovered") if stage in runs[0]]
        for stage in stages:
            values = [run[stage]["perplexity"] for run in runs if run["kind"] == kind]
            spread = {"mean": sum(values) / len(values), "low": min(values), "high": max(values)}
            summary.setdefault(kind, {})[stage] = spread
    return summary
