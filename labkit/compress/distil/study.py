"""The ablation that `labkit bench distil` records: what each ingredient adds to matching outputs, at equal budget.

All students of a seed start from the same weights, read as many tokens in as many optimiser steps, and are judged on
the same text. An ingredient helps where the interval of its margin leaves 0 out and every seed says the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from labkit.compress.distil.settings import History, Settings
from labkit.compress.distil.student import parameters, student
from labkit.compress.distil.train import distil
from labkit.errors import LabkitError
from labkit.models import LM
from labkit.quality import Score, change, compare, score
from labkit.timing import synchronize

CONTROL, BASE = "true tokens only", "outputs"
EVERYTHING = {"hidden": 1.0, "attention": 1.0, "spread": 0.5, "curriculum": 0.3}
VARIANTS: dict[str, dict[str, Any]] = {
    CONTROL: {"outputs": 0.0, "labels": 1.0},
    "outputs, T = 1": {"temperature": 1.0},
    BASE: {},
    "+ hidden states": {"hidden": 1.0},
    "+ attention maps": {"attention": 1.0},
    "+ temperature by difficulty": {"spread": 0.5},
    "+ curriculum": {"curriculum": 0.3},
    "all": EVERYTHING,
    "all, T = 1": {**EVERYTHING, "temperature": 1.0},
}
"""What each changes of the settings. BASE matches outputs at the settings' temperature and nothing else; T = 1 beside
it and beside all of them shows what is the temperature's doing."""

TIMED = 3
"""Steps that are timed before the study, to know how many the seconds allow."""


@dataclass(frozen=True)
class Judged:
    """A student's figures on the evaluation text, and what they are computed from."""

    score: Score
    kl: float
    agreement: float

    @staticmethod
    def of(teacher: LM, lm: LM, text: str) -> Judged:
        """Score a student and hold it against its teacher."""
        found = compare(teacher, lm, text)
        return Judged(score(lm, text), found.kl_divergence, found.top1_agreement)

    def figures(self, base: Score) -> dict[str, Any]:
        """Plain values; share: bits per byte of the teacher ÷ the student's, 1 for a student as good as its teacher."""
        return {
            "perplexity": self.score.perplexity,
            "bits_per_byte": self.score.bits_per_byte,
            "share": base.bits_per_byte / self.score.bits_per_byte,
            "behind": change(base, self.score),
            "kl": self.kl,
            "agreement": self.agreement,
        }


def ablation(
    teacher: LM,
    tokens: Tensor,
    text: str,
    settings: Settings,
    *,
    shape: Mapping[str, Any],
    variants: Mapping[str, Mapping[str, Any]] = VARIANTS,
    seeds: Sequence[int] = (0, 1, 2),
    seconds: float | None = None,
    say: Callable[[str], object] = lambda line: None,
) -> dict[str, Any]:
    """Train and judge a student for each variant and seed.

    Args:
        tokens: LongTensor [n] of training text.
        text: to judge on, at least two windows of `labkit.quality.score`.
        settings: of all; a variant changes some.
        shape: arguments of `student`.
        seeds: of the order of the text, and of random weights.
        seconds: for all trainings together; steps are lowered to what fits. None means all of settings.steps.
        say: is told each result.

    Returns:
        "settings" (with the steps that were taken), "variants", "shape", "parameters", "teacher"; "runs": variant,
        seed, seconds, the figures of `Judged` and the curve on held-out training text; "summary": variant → mean, low
        and high over the seeds of bits_per_byte, share and held_out; "margins": variant → bits per byte above BASE
        over all seeds, with the interval over the text's windows, and each seed's; "best": the variant that is best
        on held-out training text, a choice in which the evaluation text has no part.

    Raises:
        LabkitError: no seeds, no BASE among the variants, or what the parts raise.
    """
    if not seeds or BASE not in variants:
        raise LabkitError(
            "A study without seeds or base compares nothing.", f"Give a seed and a variant {BASE!r}."
        )
    if seconds is not None:
        taken = [step_seconds(teacher, tokens, settings, shape, one) for one in variants.values()]
        fitting = max(1, int(seconds / len(seeds) / sum(taken)))
        settings = replace(settings, steps=min(settings.steps, fitting))
        say(f"  {settings.steps} steps of {sum(taken) / len(taken) * 1e3:.1f} ms on average")
    base, runs, judged = score(teacher, text), [], {}
    size = 0
    for seed in seeds:
        for name, changes in variants.items():
            small = student(teacher, **shape, tokens=tokens, seed=seed)
            size = parameters(small.model)
            history = distil(teacher, small, tokens, replace(settings, **changes, seed=seed))
            judged[name, seed] = one = Judged.of(teacher, small, text)
            runs.append({"variant": name, "seed": seed, **figured(history), **one.figures(base)})
            say(_line(runs[-1]))
    summary = _summary(runs)
    return {
        "settings": asdict(settings), "variants": variants, "shape": shape, "parameters": size,
        "teacher": teacher_figures(teacher, base), "runs": runs, "summary": summary,
        "margins": _margins(judged, list(variants), list(seeds)),
        "best": min(summary, key=lambda name: summary[name]["held_out"]["mean"]),
    }  # fmt: skip


def figured(history: History) -> dict[str, Any]:
    """What is kept of a training: its seconds, tokens, last losses, and the curve on held-out text with its floor."""
    return {
        "seconds": history.seconds,
        "tokens": history.tokens,
        "floor": history.floor,
        "losses": history.steps[-1].losses,
        "curve": [asdict(point) for point in history.held_out],
    }


def teacher_figures(teacher: LM, base: Score) -> dict[str, Any]:
    """What students are held against."""
    return {
        "name": teacher.name,
        "parameters": parameters(teacher.model),
        "bits_per_byte": base.bits_per_byte,
        "perplexity": base.perplexity,
    }


def step_seconds(
    teacher: LM, tokens: Tensor, settings: Settings, shape: Mapping[str, Any], changes: Mapping[str, Any]
) -> float:
    """What a step of a variant takes, from its second on: the difference between a short and a shorter training."""
    ends = []
    for steps in (1, 1, 1 + TIMED):  # the first only warms up
        short = replace(settings, **{**changes, "curriculum": 1.0, "steps": steps, "held_out": 0})
        small = student(teacher, **shape, tokens=tokens)
        began = time.perf_counter()
        distil(teacher, small, tokens, short)
        synchronize(teacher.device)
        ends.append(time.perf_counter() - began)
    return max((ends[2] - ends[1]) / TIMED, 1e-6)


def _summary(runs: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name in dict.fromkeys(run["variant"] for run in runs):
        mine = [run for run in runs if run["variant"] == name]
        values = {key: [run[key] for run in mine] for key in ("bits_per_byte", "share")}
        values["held_out"] = [run["curve"][-1]["bits_per_byte"] for run in mine]
        found[name] = {
            key: {"mean": sum(each) / len(each), "low": min(each), "high": max(each)}
            for key, each in values.items()
        }
    return found


def _margins(
    judged: Mapping[tuple[str, int], Judged], names: Sequence[str], seeds: Sequence[int]
) -> dict[str, dict[str, Any]]:
    """How many bits per byte a variant costs more than BASE; below 0 it helps."""

    def pooled(name: str) -> Score:
        """Each token's loss, a mean over the seeds."""
        scores = [judged[name, seed].score for seed in seeds]
        return replace(scores[0], nats=torch.stack([each.nats for each in scores]).mean(0))

    return {
        name: {
            **asdict(change(pooled(BASE), pooled(name))),
            "seeds": [change(judged[BASE, seed].score, judged[name, seed].score).mean for seed in seeds],
        }
        for name in names
        if name != BASE
    }


def _line(run: Mapping[str, Any]) -> str:
    said = (
        f"{run['bits_per_byte']:.3f} bits per byte, {run['share']:.1%} of the teacher's, KL {run['kl']:.3f}"
    )
    return f"  {run['variant']:<28} seed {run['seed']}: {said} ({run['seconds']:.1f} s)"
