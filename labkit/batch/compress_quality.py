"""What few bits cost in quality: the part "quality" of `labkit bench compress`.

Always on labcoder in float32, whatever model the other parts measure: a model that was inflated to a full size says
nothing about how well a model of that size takes rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from labkit.batch.bench_parts import say
from labkit.compress import (
    Calibration,
    Format,
    allocate,
    bitsandbytes_model,
    calibrate,
    linears,
    quantise,
    quantize,
    sensitivity,
)
from labkit.fuse.contest import reason
from labkit.models import LM, load
from labkit.quality import Score, compare, evaluation_text, paired_bootstrap, score
from labkit.quality.bootstrap import Interval

MODEL = "labcoder"
GROUPS = (128, 64, 32)
CHOICES = (*(Format("int4", group, symmetric=False) for group in GROUPS), Format("int8"))
"""Formats that the mixed plan may give a layer."""


def quality(device: str, texts: tuple[str, ...], characters: int | None = None) -> dict[str, Any]:
    """Every method's quality against the model as it was.

    Args:
        texts: evaluation texts, read one after the other.
        characters: of them to read; all if not given.

    Returns:
        {"model", "texts", "tokens", "methods": name → weight_bytes, perplexity, bits_per_byte, perplexity_change
        (Interval, as a share), kl, top1 (Intervals), or unavailable}
    """
    lm = load(MODEL, device=device, dtype=torch.float32)
    text = "".join(map(evaluation_text, texts))[:characters]
    before = score(lm, text)
    say(f"  {lm.name} in float32, {len(before.nats):,} tokens of {' and '.join(texts)}")
    found: dict[str, Any] = {"float32": _figures(lm, lm, before, text)}
    _line("float32", found["float32"])
    for name, make in _methods(lm):
        try:
            found[name] = _figures(lm, make(), before, text)
        except Exception as error:  # what this build lacks is a finding
            found[name] = {"unavailable": reason(error)}
        _line(name, found[name])
    return {"model": lm.name, "texts": texts, "tokens": len(before.nats), "methods": found}


def _methods(lm: LM) -> Iterator[tuple[str, Callable[[], LM]]]:
    """Names, and what makes the model of each."""
    seen, blind = calibrate(lm), calibrate(lm, _noise(lm))
    for scheme in ("int8", "fp8", "w8a8"):
        yield scheme, partial(quantize, lm, scheme)
    yield "w8a8 smoothquant", partial(quantize, lm, "w8a8", method="smoothquant", calibration=seen)
    for group in GROUPS:
        made = Format("int4", group, symmetric=False)
        yield f"int4 g{group}", partial(quantize, lm, made)
        yield f"int4 g{group} awq", partial(quantize, lm, made, method="awq", calibration=seen)
        if group == GROUPS[0]:
            yield f"int4 g{group} awq, noise", partial(quantize, lm, made, method="awq", calibration=blind)
    yield from _mixed(lm, seen)
    for kind in ("int8", "nf4"):
        yield f"bitsandbytes {kind}", partial(bitsandbytes_model, lm, kind)


def _mixed(lm: LM, seen: Calibration) -> Iterator[tuple[str, Callable[[], LM]]]:
    """Plans of as many bytes as each uniform grouping takes."""
    measured = sensitivity(lm, CHOICES)
    for group in GROUPS[1:]:
        made = Format("int4", group, symmetric=False)
        budget = sum(quantise(each.weight, made).nbytes for each in linears(lm).values())
        plan = allocate(measured, budget)
        yield f"mixed, bytes of g{group}", partial(quantize, lm, plan=plan)
        yield (
            f"mixed awq, bytes of g{group}",
            partial(quantize, lm, plan=plan, method="awq", calibration=seen),
        )


def _noise(lm: LM, tokens: int = 8192) -> torch.Tensor:
    """Token ids drawn at random: a calibration text that no user would type."""
    return torch.randint(lm.config.vocab_size, (tokens,), generator=torch.Generator().manual_seed(0))


def _figures(lm: LM, other: LM, before: Score, text: str) -> dict[str, Any]:
    after, apart = score(other, text), compare(lm, other, text)
    return {
        "weight_bytes": other.weight_bytes,
        "perplexity": after.perplexity,
        "bits_per_byte": after.bits_per_byte,
        "perplexity_change": _share(_interval(before.nats, after.nats, before.window)),
        "kl": _interval(torch.zeros_like(apart.kl), apart.kl, apart.window),
        "top1": _interval(torch.zeros_like(apart.agrees), apart.agrees, apart.window),
    }


def _interval(before: torch.Tensor, after: torch.Tensor, window: torch.Tensor) -> Interval:
    """Of a mean over tokens, windows drawn."""
    count = torch.bincount(window)
    first, second = (
        torch.zeros(len(count), dtype=torch.float64).index_add_(0, window, each.double()) / count.clamp(min=1)
        for each in (before, after)
    )
    return paired_bootstrap(first, second, weights=count.double())


def _share(nats: Interval) -> Interval:
    """A change of the mean in nats as a relative change of perplexity."""
    return Interval(*(math.expm1(each) for each in (nats.mean, nats.low, nats.high)))


def _line(name: str, one: dict[str, Any]) -> None:
    if "unavailable" in one:
        say(f"  {name}: {one['unavailable']}")
        return
    rise = one["perplexity_change"]
    say(
        f"  {name:<26} {one['weight_bytes'] / 1e6:7.2f} MB  perplexity {one['perplexity']:.4f} "
        f"{rise.mean:+.2%} [{rise.low:+.2%}, {rise.high:+.2%}]  KL {one['kl'].mean:.4f}  "
        f"same first choice {one['top1'].mean:.1%}"
    )
