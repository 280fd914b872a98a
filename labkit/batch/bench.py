"""`labkit bench batch`: the same requests through every scheduler, and through transformers beside ours.

Two loads of seeded prompts from real text: outputs of one length, and of very different lengths. All requests
are there at the start, so the figure is throughput; times to first tokens are those of a queue that everybody
joined at once. The virtual engine, fitted to the steps of a decode curve and of the first load, predicts the
second.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from labkit.batch import peers
from labkit.batch.build import engine_for
from labkit.batch.engine import Engine
from labkit.batch.explore import decode_curve
from labkit.batch.metrics import StepRecord
from labkit.batch.policy import Continuous, Policy, dynamic, static
from labkit.batch.replay import Replay, replay
from labkit.batch.request import Request
from labkit.batch.scheduler import Scheduler
from labkit.batch.virtual import CostModel, CostRunner, VirtualClock
from labkit.batch.workload import Arrival, skewed, workload
from labkit.cache.tables import BlockTables
from labkit.models import LM, load
from labkit.quality import evaluation_text
from labkit.timing import duration, percentile

SETTINGS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "no graphs": {"use_cuda_graph": False, "use_async_batching": False},
}
"""Of transformers' continuous batching: its own choice, which takes graphs and overlaps, and without either."""


@dataclass(frozen=True)
class Plan:
    """Sizes of the benchmark. `alone`: how many requests are run one by one, the rest being extrapolated."""

    requests: int
    prompts: tuple[int, int]
    new: int
    skew: tuple[tuple[int, int], tuple[int, int], float]
    batch: int
    rows: int
    window: float = 0.2
    alone: int = 8

    @property
    def sizes(self) -> list[int]:
        """Batch sizes of the decode curve: powers of two up to the rows."""
        return [1 << power for power in range(self.rows.bit_length())]


def plan_for(device_type: str) -> Plan:
    """256 requests of 32–512 tokens, 128 new, on a GPU; 32 of 16–128 tokens, 64 new, on a CPU."""
    if device_type == "cuda":
        return Plan(256, (32, 512), 128, ((16, 96), (256, 512), 0.25), batch=64, rows=256)
    return Plan(32, (16, 128), 64, ((8, 24), (192, 256), 0.15), batch=8, rows=32)


def run(model: str = "labcoder", device: str | None = None, plan: Plan | None = None) -> dict[str, Any]:
    """Measure, print a short table and a line of JSON, and return all figures."""
    lm = load(model, device=device)
    plan = plan or plan_for(lm.device.type)
    text = lm.encode(evaluation_text("fixed"))[0].tolist()
    equal = workload(text, plan.requests, prompts=plan.prompts, outputs=(plan.new, plan.new), seed=1)
    uneven = workload(text, plan.requests, prompts=plan.prompts, outputs=skewed(*plan.skew), seed=2)
    curve, curve_steps = _curve(lm, text, plan.sizes)
    first = _equal(lm, equal, plan)
    second = _skewed(lm, uneven, plan, _best(first["transformers"]))
    figures: dict[str, Any] = {
        "plan": asdict(plan),
        "model": lm.name,
        "decode_step": curve,
        "loads": {"equal": first, "skewed": second},
    }
    figures["prediction"] = _prediction(figures["loads"], curve_steps, uneven, plan)
    for one in figures["loads"].values():
        one["ours"]["continuous"].pop("records")
    _print(figures)
    return figures


def _curve(lm: LM, text: list[int], sizes: Sequence[int]) -> tuple[dict[int, float], list[StepRecord]]:
    """Seconds of a decode step by batch size, and all steps that were run for it."""
    print(f"{lm.name}, decoding")
    curve, records = decode_curve(lm, text, sizes)
    release(lm)
    for size, seconds in curve.items():
        _say(size / seconds, f"{size} rows, {duration(seconds)} a step")
    return curve, records


def _equal(lm: LM, arrivals: Sequence[Arrival], plan: Plan) -> dict[str, Any]:
    """The first load, through everything; a short run of it warms up what the batches have in common."""
    requests = [arrival.request for arrival in arrivals]
    with engine_for(lm, rows=plan.rows) as engine:
        engine.run([replace(request, max_tokens=8) for request in requests])
    print(f"{lm.name}, outputs of one length: {sum(request.max_tokens for request in requests):,} tokens")
    some = requests[: plan.alone]
    peers.one_by_one(lm, [replace(some[0], max_tokens=8)])  # warm up
    seconds, tokens = peers.one_by_one(lm, some), sum(request.max_tokens for request in some)
    _say(tokens / seconds, f"one by one through generate (measured on {len(some)} requests)")
    found = {
        "output_tokens": sum(request.max_tokens for request in requests),
        "one_by_one": {"requests": len(some), "seconds": seconds, "tokens_per_second": tokens / seconds},
        "transformers": _transformers(lm, requests, SETTINGS) if lm.device.type == "cuda" else {},
    }
    return found | {
        "ours": _policies(lm, arrivals, plan, ("static", "dynamic", "continuous, few", "continuous"))
    }


def _skewed(lm: LM, arrivals: Sequence[Arrival], plan: Plan, best: str | None) -> dict[str, Any]:
    """The second load; of transformers only the setting that was best at the first."""
    requests = [arrival.request for arrival in arrivals]
    found: dict[str, Any] = {"output_tokens": sum(request.max_tokens for request in requests)}
    print(f"{lm.name}, outputs of very different lengths: {found['output_tokens']:,} tokens")
    found["transformers"] = _transformers(lm, requests, {best: SETTINGS[best]}) if best else {}
    return found | {"ours": _policies(lm, arrivals, plan, ("static", "continuous, few", "continuous"))}


def _policies(lm: LM, arrivals: Sequence[Arrival], plan: Plan, names: Sequence[str]) -> dict[str, Any]:
    """`continuous, few` has as many rows as a static batch, so that only the scheduling differs."""
    known: dict[str, Policy] = {
        "static": static(plan.batch),
        "dynamic": dynamic(plan.batch, plan.window),
        "continuous, few": Continuous(plan.batch),
        "continuous": Continuous(),
    }
    found = {}
    for name in names:
        found[name] = one = _ours(lm, arrivals, known[name], plan, keep=name == "continuous")
        first, rows = duration(one["ttft"][95]), one["rows_a_step"]
        what = f"{name}: {one['seconds']:.1f} s, TTFT p95 {first}, {rows:.0f} rows a step"
        _say(one["tokens_per_second"], what)
    return found


def _ours(lm: LM, arrivals: Sequence[Arrival], policy: Policy, plan: Plan, *, keep: bool) -> dict[str, Any]:
    with engine_for(lm, policy, rows=plan.rows) as engine:
        warm = [replace(arrival.request, max_tokens=4, salt="warm") for arrival in arrivals[:32]]
        engine.run(warm)
        engine.scheduler.tables.pool.drop_cached()
        before = engine.metrics.count
        result = replay(engine, arrivals)
        steps = engine.metrics.steps[before:]
        figures = summary(result) | {
            "steps": len(steps),
            "step_s": {q: percentile([step.seconds for step in steps], q) for q in (50, 95, 100)},
            "rows_a_step": sum(len(step.rows) for step in steps) / len(steps),
            "preemptions": engine.scheduler.preemptions,
            "blocks": engine.scheduler.tables.pool.total,
        }
        if keep:
            figures["records"] = steps
    release(lm)
    return figures


def release(lm: LM) -> None:
    """Give memory of what has just been closed back to the device."""
    gc.collect()
    if lm.device.type == "cuda":
        torch.cuda.empty_cache()


def summary(result: Replay) -> dict[str, Any]:
    """What a load measured, in the terms of the tables."""
    return {
        "seconds": result.seconds,
        "tokens_per_second": result.tokens_per_second,
        "ttft": {q: result.ttft(q) for q in (50, 95)},
        "e2e": {q: result.e2e(q) for q in (50, 95)},
    }


def _transformers(lm: LM, requests: Sequence[Request], settings: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Its continuous batching; the best setting counts."""
    found: dict[str, Any] = {}
    tokens = sum(request.max_tokens for request in requests)
    for name, chosen in settings.items():
        try:
            seconds, outputs = peers.transformers_continuous(lm, requests, **chosen)
            whole = sum(map(len, outputs)) == tokens
            found[name] = {"seconds": seconds, "tokens_per_second": tokens / seconds, "complete": whole}
        except Exception as error:  # a setting that this build lacks is a finding, not a failure of ours
            found[name] = {"unavailable": f"{type(error).__name__}: {error}"[:300]}
        said = found[name].get("unavailable", f"in {found[name].get('seconds', 0):.1f} s")
        _say(found[name].get("tokens_per_second"), f"transformers' continuous batching, {name}: {said[:80]}")
        release(lm)
    return found


def _best(peers_: dict[str, Any]) -> str | None:
    rates = {name: one["tokens_per_second"] for name, one in peers_.items() if "tokens_per_second" in one}
    return max(rates, key=rates.__getitem__, default=None)


def _prediction(
    loads: dict[str, Any], curve: list[StepRecord], arrivals: Sequence[Arrival], plan: Plan
) -> dict[str, Any]:
    """The second load on the virtual clock, with costs fitted to the decode curve and the steps of the first."""
    costs = CostModel.fit([*curve, *loads["equal"]["ours"]["continuous"]["records"]])
    clock = VirtualClock()
    measured = loads["skewed"]["ours"]["continuous"]
    tables = BlockTables(measured["blocks"], 16)
    engine = Engine(CostRunner(clock, costs), Scheduler(tables, Continuous(), rows=plan.rows), clock=clock)
    predicted = summary(replay(engine, arrivals))
    return {
        "costs": asdict(costs),
        "predicted": predicted,
        "ratio": predicted["seconds"] / measured["seconds"],
    }


def _say(rate: float | None, what: str) -> None:
    """One line of the table, at once: a benchmark of minutes should show what it is doing."""
    print(f"  {rate:9,.0f} tokens/s  {what}" if rate else f"          –  {what}", flush=True)


def _print(figures: dict[str, Any]) -> None:
    headline: dict[str, Any] = {"bench": "batch", "model": figures["model"]}
    for name, one in figures["loads"].items():
        headline[name] = {policy: round(ours["tokens_per_second"], 1) for policy, ours in one["ours"].items()}
    headline["one by one"] = round(figures["loads"]["equal"]["one_by_one"]["tokens_per_second"], 1)
    prediction = figures["prediction"]
    print(f"virtual engine, skewed load: predicted ÷ measured seconds = {prediction['ratio']:.2f}")
    print(json.dumps(headline | {"prediction_ratio": round(prediction["ratio"], 3)}))
