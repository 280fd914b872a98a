"""What each way to slim labcoder costs, on a text large enough for narrow intervals; the part "quality" of the bench.

Always labcoder's: an inflated model says what labcoder says, and its quality proves nothing about a real 7B's.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from typing import Any

import torch

from labkit.batch.bench_parts import say
from labkit.compress import Format, linears, quantise, quantize
from labkit.compress.budget import allocate
from labkit.compress.sensitivity import sensitivity
from labkit.fuse.contest import reason
from labkit.models import LM, load
from labkit.quality import Score, compare, evaluation_text, paired_bootstrap, score

INT4, INT8 = Format("int4", 128, symmetric=False), Format("int8")
SMALL = 12_000
"""Characters of the text where there is no GPU."""


def quality(lm: LM) -> dict[str, Any]:
    """Perplexity, KL and agreement of labcoder in each format and by each method, beside the plain model.

    Args:
        lm: only its device counts.

    Returns:
        "text", "tokens", "perplexity" and "weight_bytes" of the plain model; "models": name → weight_bytes,
        perplexity, worse (perplexity above the plain model's as a share), low and high (its interval, a paired
        bootstrap over windows), kl [nats a token], agreement; or {"unavailable": why}.
    """
    coder = load("labcoder", device=str(lm.device), dtype=torch.float32)
    text = evaluation_text("stdlib")
    if lm.device.type != "cuda":
        text = text[:SMALL]
    base = score(coder, text)
    models: dict[str, Any] = {}
    for name, make in ways(coder).items():
        try:
            models[name] = judged(coder, make(), base, text)
            one = models[name]
            say(
                f"  {name:<24} {one['worse']:+.2%} [{one['low']:+.2%}, {one['high']:+.2%}], KL {one['kl']:.4f}"
            )
        except Exception as error:  # a method or package that is not there is a finding
            models[name] = {"unavailable": reason(error)}
            say(f"  {name}: {models[name]['unavailable']}")
        gc.collect()
    return {
        "text": "stdlib",
        "tokens": len(base.nats),
        "perplexity": base.perplexity,
        "weight_bytes": coder.weight_bytes,
        "models": models,
    }


def ways(coder: LM) -> dict[str, Callable[[], LM]]:
    """Name → what makes the model."""

    def ready(kind: str) -> LM:
        from labkit.compress import bitsandbytes_model

        return bitsandbytes_model(coder, kind)

    return {
        "int8": lambda: quantize(coder, "int8"),
        "fp8": lambda: quantize(coder, "fp8"),
        "w8a8": lambda: quantize(coder, "w8a8"),
        "w8a8, SmoothQuant": lambda: quantize(coder, "w8a8", method="smoothquant"),
        "int4": lambda: quantize(coder, "int4"),
        "int4, groups of 64": lambda: quantize(coder, Format("int4", 64, symmetric=False)),
        "int4, groups of 32": lambda: quantize(coder, Format("int4", 32, symmetric=False)),
        "int4, AWQ": lambda: quantize(coder, "int4", method="awq"),
        "int4 and int8, as small as groups of 32": lambda: mixed(coder),
        "bitsandbytes int8": lambda: ready("int8"),
        "bitsandbytes nf4": lambda: ready("nf4"),
    }


def mixed(coder: LM) -> LM:
    """4 and 8 bits, in the bytes that uniform groups of 32 take."""
    finer = Format("int4", 32, symmetric=False)
    budget = sum(quantise(linear.weight, finer).nbytes for linear in linears(coder).values())
    return quantize(coder, "int4", plan=allocate(sensitivity(coder, [INT4, INT8]), budget))


def judged(coder: LM, slim: LM, base: Score, text: str) -> dict[str, Any]:
    """A model's figures beside the plain one's."""
    now, apart = score(slim, text), compare(coder, slim, text)
    count = int(base.window.max()) + 1
    sums = [
        torch.zeros(count, dtype=torch.float64).index_add_(0, base.window, each.nats) for each in (base, now)
    ]
    lengths = torch.bincount(base.window, minlength=count).double()
    moved = paired_bootstrap(sums[0] / lengths, sums[1] / lengths, weights=lengths)
    return {
        "weight_bytes": slim.weight_bytes,
        "perplexity": now.perplexity,
        "worse": math.expm1(moved.mean),
        "low": math.expm1(moved.low),
        "high": math.expm1(moved.high),
        "kl": apart.kl_divergence,
        "agreement": apart.top1_agreement,
    }
