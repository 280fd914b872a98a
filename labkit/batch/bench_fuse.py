"""`labkit bench fuse`: the stove, rung by rung and kernel by kernel, with its peers beside it.

The record, in figures (times in seconds; "runs" hold every repeat; what could not run is {"unavailable": why}):

    model, dtype, plan; ceilings: bandwidth [B/s], flops [FLOP/s], name; seconds: part → how long it took
    carried: part → date, commit and command of the record that it was taken over from (`--only`)
    ladder: prompt, new [tokens]; bytes_a_step: weights and KV that a step must read; tpot_floor [s]
        rungs: name (labkit.batch.rungs.RUNGS) → tpot, low, high (10th and 90th percentile), tokens_per_second,
            share (bytes_a_step ÷ tpot ÷ bandwidth), runs {seconds},
            step: kernels, launches, busy, gap_share of one decode step, traced
        control: tpot of "everything" ÷ that with random weights
        fused: what fuse.apply said
    peers: name → tpot, low, high, tokens_per_second, share, runs {seconds}, compiled;
        prompt and request as in the ladder
    ttft: list of prompt [tokens], flops (of the model), rungs: name → ttft, mfu (flops ÷ ttft ÷ peak), runs {seconds}
    kernels: compiles (whether Triton does here), liger (its version or None), and cases: list of kernel
        ("rms_norm", "gated", "rope", "linear"), shape, tokens, bytes, copies, cold (whether the inputs exceed the
        cache), contenders: "labkit" | "torch" | "torch.compile" | "liger" → seconds, rate [B/s],
        share (of read bandwidth), difference (to torch, relative to its largest number), runs [s] of calls calls;
        ratio (the fastest other's seconds ÷ ours: above 1 a win). Rope has "liger, rotation alone" instead, which
        neither splits nor stores and does not count in the ratio.
    attention: prefill: list of shape, rows, tokens, heads, kv_heads, dim, flops, contenders: "labkit, paged" |
        "torch, flash" | "torch, cuDNN" → seconds, rate [FLOP/s], difference, runs, calls; ratio (ours ÷ the faster of
        torch's, None without both)
        decode: list of shape, rate [B/s], share (of read bandwidth), runs {seconds}; empty without a GPU
    load: requests, prompts, new, output_tokens;
        closed (all at once): "plain" | "everything" → seconds, tokens_per_second, ttft, e2e, tpot (each by
            percentile), steps, rows_a_step, complete, runs [s]
        open (one by one, Poisson): requests_per_second (half of the closed run's), tpot, tpot_ratio (median ÷ that
            of the closed run), seconds, tokens_per_second, ttft, e2e
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from labkit.batch import fuse_parts
from labkit.batch.bench_parts import carry, chosen, measure, say
from labkit.batch.fuse_parts import Kitchen, Plan, plan_for
from labkit.batch.rungs import EVERYTHING
from labkit.models import load
from labkit.profile import ceilings
from labkit.quality import evaluation_text


def run(
    model: str = "labcoder", device: str | None = None, plan: Plan | None = None, *, only: str = ""
) -> dict[str, Any]:
    """Measure, print each result at once and a line of JSON at the end, and return all figures.

    Args:
        only: parts, separated by commas; all when empty. The other parts of a record that is there are kept, if it is
            of the same model, with a note of where they are from.
    """
    names = chosen(only, PARTS)
    lm = load(model, device=device)
    plan = plan or plan_for(lm.device.type)
    text = lm.encode(evaluation_text("fixed"))[0].tolist()
    peaks = ceilings(lm.device, lm.dtype)
    figures: dict[str, Any] = {
        "model": lm.name,
        "dtype": str(lm.dtype).removeprefix("torch."),
        "plan": asdict(plan),
        "ceilings": peaks,
        "seconds": {},
        "carried": {},
    }
    say(f"{lm.name}, {peaks}")
    kitchen = Kitchen(lm, model, text * -(-max(plan.prompts) * 2 // len(text)), peaks, plan)
    measure(names, PARTS, kitchen, figures)
    carry("fuse", PARTS, figures, device)
    print(json.dumps(_headline(figures)))
    return figures


PARTS: dict[str, Callable[[Kitchen], Any]] = {
    "ladder": fuse_parts.ladder,
    "ttft": fuse_parts.ttft,
    "load": fuse_parts.load,
    "kernels": fuse_parts.kernels,
    "attention": fuse_parts.attention,
    "peers": fuse_parts.peers,
}
"""Peers last: compiling a whole model takes a minute, and leaves memory in pieces."""


def _headline(figures: dict[str, Any]) -> dict[str, Any]:
    """What the last line says."""

    def dig(*path: Any) -> Any:
        found: Any = figures
        for key in path:
            found = found.get(key) if isinstance(found, dict) else None
        return found

    long = figures.get("ttft")
    last = long[-1]["rungs"].get(EVERYTHING.name, {}) if isinstance(long, list) and long else {}
    rungs, others = dig("ladder", "rungs") or {}, figures.get("peers") or {}
    cases = dig("kernels", "cases") or []
    paces = {name: one for name, one in {**rungs, **others}.items() if isinstance(one, dict)}
    return {
        "bench": "fuse",
        "model": figures["model"],
        "tokens_per_s": {
            name: round(one["tokens_per_second"], 1) for name, one in paces.items() if "tpot" in one
        },
        "share": round(dig("ladder", "rungs", EVERYTHING.name, "share") or 0, 3) or None,
        "ttft_s": last.get("ttft") and round(last["ttft"], 5),
        "mfu": last.get("mfu") and round(last["mfu"], 3),
        "kernels_won": sum((one["ratio"] or 0) > 1 for one in cases) if cases else None,
        "kernels": len(cases) or None,
        "load_tokens_per_s": dig("load", "closed", EVERYTHING.name, "tokens_per_second"),
        "tpot_ratio": dig("load", "open", "tpot_ratio"),
    }
