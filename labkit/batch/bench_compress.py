"""`labkit bench compress`: the slim recipe in every precision, with its peers beside it.

The record, in figures (times in seconds; "runs" hold every repeat; what could not run is {"unavailable": why}):

    model, dtype, own (the precision it came in), plan; ceilings: bandwidth [B/s], flops [FLOP/s], name;
    seconds: part → how long it took; carried: part → where it is from, as in `labkit bench fuse`
    quality: see labkit.batch.compress_quality
    precision: name → weight_bytes, bytes_a_step, tpot, low, high, tokens_per_second, share (bytes_a_step ÷ tpot ÷
        bandwidth), runs {seconds}: one request through the engine, with fused kernels and graphs
    batch: prompts (shortest and longest [tokens]), seconds: name → rows → a decode step
    kernels: list of kernel (the product's name), shape (rows, columns), tokens, contenders: name → seconds, bytes (of
        the weight as stored), rate [B/s], share, difference, runs, calls: see labkit.fuse.bench_packed
    bitsandbytes, torchao: name → as in precision; torchao's through transformers' generate with a static cache and
        torch.compile, its best setting: compiled
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from labkit.batch import compress_parts, compress_peers
from labkit.batch.bench_parts import Parts, carry, chosen, measure, say
from labkit.batch.compress_parts import Kitchen, Plan, plan_for
from labkit.models import load
from labkit.profile import ceilings
from labkit.quality import evaluation_text

PARTS: Parts = {
    "quality": compress_parts.quality,
    "precision": compress_parts.precision,
    "batch": compress_parts.batch,
    "kernels": compress_parts.kernels,
    "bitsandbytes": compress_parts.bitsandbytes,
    "torchao": compress_peers.torchao,
}
"""torchao last: compiling a whole model takes a minute, and leaves memory in pieces."""


def run(
    model: str = "labcoder", device: str | None = None, plan: Plan | None = None, *, only: str = ""
) -> dict[str, Any]:
    """Measure, print each result at once and a line of JSON at the end, and return all figures.

    Args:
        only: parts, separated by commas; all when empty. The others are kept from a record that is there.
    """
    names = chosen(only, PARTS)
    lm = load(model, device=device)
    plan = plan or plan_for(lm.device.type)
    text = lm.encode(evaluation_text("fixed"))[0].tolist()
    peaks = ceilings(lm.device, lm.dtype)
    kitchen = Kitchen(lm, model, text, peaks, plan)
    figures: dict[str, Any] = {
        "model": lm.name,
        "dtype": str(lm.dtype).removeprefix("torch."),
        "own": kitchen.own,
        "plan": asdict(plan),
        "ceilings": peaks,
        "seconds": {},
        "carried": {},
    }
    say(f"{lm.name}, {peaks}")
    measure(names, PARTS, kitchen, figures)
    carry("compress", PARTS, figures, device)
    print(json.dumps(_headline(figures)))
    return figures


def _headline(figures: dict[str, Any]) -> dict[str, Any]:
    """What the last line says."""
    paced = {
        name: one
        for part in ("precision", "bitsandbytes", "torchao")
        for name, one in (figures.get(part) or {}).items()
        if isinstance(one, dict) and "tpot" in one
    }
    return {
        "bench": "compress",
        "model": figures["model"],
        "tokens_per_s": {name: round(one["tokens_per_second"], 1) for name, one in paced.items()},
        "gb": {
            name: round(one["weight_bytes"] / 1e9, 3) for name, one in paced.items() if "weight_bytes" in one
        },
    }
