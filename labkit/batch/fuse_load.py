"""The stove under load: many requests at once, and the same kind arriving one by one at half of what it can do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from labkit.batch.bench import Plan, summary
from labkit.batch.engine import Engine
from labkit.batch.replay import Replay, replay
from labkit.batch.rungs import EVERYTHING, PLAIN, Rung, standing
from labkit.batch.workload import Arrival, workload
from labkit.fuse.contest import reason
from labkit.models import LM
from labkit.timing import duration, percentile

SHARE = 0.5
"""Of the measured capacity, at which requests arrive one by one."""


def under_load(
    lm: LM, text: Sequence[int], plan: Plan, repeats: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """The first load of `labkit bench batch` on the plain model, and on everything `repeats` times; then arrivals.

    Args:
        plan: of `labkit bench batch`; its `requests`, `prompts`, `new` and `rows` count here.

    Returns:
        See labkit.batch.bench_fuse.
    """
    arrivals = workload(text, plan.requests, prompts=plan.prompts, outputs=(plan.new, plan.new), seed=1)
    # a GPU is the engine's alone; elsewhere clearing memory that nobody needs would take longer than the load
    longest = -(-(plan.prompts[1] + plan.new) // 16) + 1
    blocks = None if lm.device.type == "cuda" else plan.rows * longest
    found: dict[str, Any] = {
        "requests": plan.requests, "prompts": plan.prompts, "new": plan.new,
        "output_tokens": plan.requests * plan.new, "closed": {}, "open": {},
    }  # fmt: skip
    for rung in (PLAIN, EVERYTHING):
        try:
            with standing(lm, rung, rows=plan.rows, blocks=blocks) as engine:
                _warm(engine, arrivals)
                runs = [
                    _closed(engine, arrivals, rung, say) for _ in range(repeats if rung is EVERYTHING else 1)
                ]
                middle = sorted(runs, key=lambda one: float(one["seconds"]))[(len(runs) - 1) // 2]
                found["closed"][rung.name] = middle | {"runs": [one["seconds"] for one in runs]}
                if rung is EVERYTHING:
                    found["open"] = _open(engine, text, plan, middle, say)
        except Exception as error:  # of one rung; the other may run
            found["closed"][rung.name] = {"unavailable": reason(error)}
            say(f"  {rung.name}: {reason(error)}")
    return found


def _warm(engine: Engine, arrivals: Sequence[Arrival]) -> None:
    """Compile, tune and capture before the clock starts: the whole load, with short outputs."""
    engine.run([replace(arrival.request, max_tokens=8, salt="warm") for arrival in arrivals])
    engine.scheduler.tables.pool.drop_cached()


def _closed(
    engine: Engine, arrivals: Sequence[Arrival], rung: Rung, say: Callable[[str], None]
) -> dict[str, Any]:
    before = engine.metrics.count
    result = replay(engine, arrivals)
    engine.scheduler.tables.pool.drop_cached()
    steps = engine.metrics.steps[before:]
    figures = summary(result) | {
        "tpot": tpot(result),
        "steps": len(steps),
        "rows_a_step": sum(len(step.rows) for step in steps) / len(steps),
        "complete": result.tokens == sum(arrival.request.max_tokens for arrival in arrivals),
    }
    say(
        f"  all at once, {rung.name}: {figures['tokens_per_second']:,.0f} tokens/s in {result.seconds:.2f} s, "
        f"TPOT {duration(figures['tpot'][50])}, TTFT p95 {duration(figures['ttft'][95])}"
    )
    return figures


def _open(
    engine: Engine, text: Sequence[int], plan: Plan, closed: dict[str, Any], say: Callable[[str], None]
) -> dict[str, Any]:
    """Poisson arrivals at SHARE of the closed run's requests per second."""
    rate = SHARE * plan.requests / float(closed["seconds"])
    arrivals = workload(
        text, plan.requests, prompts=plan.prompts, outputs=(plan.new, plan.new), rate=rate, seed=2
    )
    result = replay(engine, arrivals)
    pace = tpot(result)
    figures = summary(result) | {
        "requests_per_second": rate, "tpot": pace, "tpot_ratio": pace[50] / closed["tpot"][50]
    }  # fmt: skip
    say(
        f"  one by one at {rate:.1f} requests/s, everything: TPOT {duration(pace[50])} "
        f"({figures['tpot_ratio']:.2f} × all at once), TTFT p95 {duration(figures['ttft'][95])}"
    )
    return figures


def tpot(result: Replay) -> dict[int, float]:
    """Percentiles of the requests' time per output token [s]."""
    paces = [pace for ticket in result.tickets if (pace := ticket.latency().tpot) is not None]
    return {q: percentile(paces, q) for q in (50, 95)}
