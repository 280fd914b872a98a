"""`labkit bench profile`: the baseline that the rest of the course is compared with.

Ceilings of the device, latency and stages of one request through the plain loop, utilisation, gaps on the
timeline, a grid over prompt and output lengths, and the same model with fully random weights beside it: its
speed must be the same, or the embedded weights would be flattering the hardware.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch

from labkit.errors import LabkitError
from labkit.models import load
from labkit.profile.card import CostCard, cost_card
from labkit.profile.card_text import amount
from labkit.profile.datasheet import Ceilings, datasheet_for
from labkit.profile.formulas import mbu, mfu
from labkit.profile.grid import Grid, measure_grid
from labkit.profile.latency import LatencyReport, latency_report
from labkit.profile.loop import decode_steps, generate
from labkit.profile.peaks import ceilings
from labkit.profile.plan import Plan, fitting, plan_for
from labkit.profile.roofline import roofline_points
from labkit.profile.stages import stage_report
from labkit.profile.tracer import trace
from labkit.quality import evaluation_text
from labkit.timing import Latency, compare, duration

if TYPE_CHECKING:
    from labkit.models import LM


def run(model: str = "labcoder", device: str | None = None, plan: Plan | None = None) -> dict[str, Any]:
    """Measure everything, print a short table and one line of JSON, and return all figures with all repeats.

    Args:
        model: any name that `labkit.load` takes.
        device: the GPU if there is one when None.
        plan: sizes; by the device when None. Cut down where the model or the time does not allow them.
    """
    lm = load(model, device=device)
    text = evaluation_text("fixed")
    plan = plan or plan_for(lm.device.type)
    plan = fitting(plan, lm, _text_ids(lm, text, max(plan.prompts)))
    prompt, ids = text[: plan.prompt_characters], _text_ids(lm, text, max(plan.prompts))
    peaks = ceilings(lm.device, lm.dtype)
    latency = latency_report(lm, prompt, plan.new_tokens, repeats=plan.repeats)
    grid = measure_grid(lm, ids, peaks, prompts=plan.prompts, outputs=plan.outputs, repeats=plan.repeats)
    card = cost_card(
        lm, peaks, prompt=latency.prompt_tokens, context=latency.prompt_tokens + plan.new_tokens // 2
    )
    figures = {
        "plan": plan,
        "model": _model(lm, card),
        "ceilings": {"measured": peaks, "datasheet": datasheet_for(peaks.name)},
        "floors": {"ttft": card.ttft_floor, "tpot": card.tpot_floor},
        "latency": _latency(latency),
        "stages": _stages(lm, prompt, plan),
        "utilisation": _utilisation(lm, card, latency, grid, peaks),
        "gaps": _gaps(lm, ids[:, : plan.prompts[0]], plan.traced),
        "grid": grid,
        "roofline": roofline_points(
            lm,
            peaks,
            prompts=plan.prompts,
            contexts=(card.context,),
            prefill_seconds={size: grid.ttft(size).median for size in plan.prompts},
            decode_seconds={1: latency.tpot.median},
        ),
        "control": _control(lm, model, ids[:, : plan.prompts[0]], plan),
    }
    _print(figures, card, latency, peaks)
    return figures


def _text_ids(lm: LM, text: str, length: int) -> torch.Tensor:
    """Ids of real text [1, length]; a text that is too short for this tokenizer is read again."""
    ids = lm.encode(text)
    return ids.repeat(1, -(-length // ids.shape[1]))[:, :length]


def _model(lm: LM, card: CostCard) -> dict[str, Any]:
    return {
        "name": lm.name,
        "dtype": card.dtype,
        "parameters": card.parameters,
        "weight_bytes": card.weight_bytes,
        "weight_bytes_read": card.weight_bytes_read,
        "kv_bytes_per_token": card.kv_bytes_per_token,
        "shape": card.shape,
    }


def _latency(report: LatencyReport) -> dict[str, Any]:
    """Medians and every run, its stamps counted from its sending."""
    return {
        "prompt_tokens": report.prompt_tokens,
        "new_tokens": report.new_tokens,
        "ttft": report.ttft.median,
        "tpot": report.tpot.median,
        "e2e": report.e2e.median,
        "tokens_per_second": report.tokens_per_second,
        "runs": [
            Latency(0.0, tuple(stamp - run.sent for stamp in run.stamps), run.silent) for run in report.runs
        ],
    }


def _stages(lm: LM, prompt: str, plan: Plan) -> dict[str, Any]:
    report = stage_report(lm, prompt, plan.new_tokens, repeats=plan.repeats)
    print(report, end="\n\n")
    return {
        "stages": report.stages,
        "remainder": report.remainder,
        "e2e": report.e2e,
        "unsynchronised": report.unsynchronised,
        "sync_cost": report.sync_cost,
        "runs": report.runs,
        "unsynchronised_runs": report.unsynchronised_runs,
    }


def _utilisation(
    lm: LM, card: CostCard, latency: LatencyReport, grid: Grid, peaks: Ceilings
) -> dict[str, float]:
    """MBU of decoding and MFU of the longest prefill."""
    longest = max(grid.prompts)
    work = cost_card(lm, peaks, prompt=longest).prefill.flops
    return {
        "mbu": mbu(card.weight_bytes_read, card.kv_bytes, latency.tpot.median, peaks.bandwidth),
        "mfu_prefill": mfu(work, grid.ttft(longest).median, peaks.flops),
        "mfu_prefill_tokens": longest,
    }


def _gaps(lm: LM, ids: torch.Tensor, steps: int) -> dict[str, Any]:
    """The timeline of a few decode steps, per token where that says more."""
    try:
        found = trace(decode_steps(lm, ids, steps), lm.device)
    except LabkitError as error:  # a machine may forbid profiling; the rest of the benchmark stands
        print(error, end="\n\n")
        return {"unavailable": str(error), "gap_share": None}
    print(found.summary(), end="\n\n")
    return {
        "tokens": steps,
        "traced_seconds": found.seconds,
        "untraced_seconds": found.untraced_seconds,
        "busy_seconds": found.busy_seconds,
        "gap_share": found.gap_share,
        "untraced_gap_share": found.untraced_gap_share,
        "causes": found.causes(),
        "gaps": len(found.gaps),
        "kernels_per_token": len(found.kernels) / steps,
        "launches_per_token": found.launches / steps,
        "copies": len(found.copies),
        "synchronisations": len(found.synchronisations),
        "heaviest": [{"name": name, "count": count, "seconds": s} for name, count, s in found.top(8)],
    }


def _control(lm: LM, model: str, ids: torch.Tensor, plan: Plan) -> dict[str, Any]:
    """The same request on the same shape with fully random weights, in turn with the model itself."""
    # "auto" would choose again, with less memory free than before
    name = lm.name if model == "auto" else model
    random = load(name, device=str(lm.device), dtype=lm.dtype, random_weights=True)
    timed = compare(
        {
            "weights": lambda: generate(lm, ids, plan.new_tokens),
            "random": lambda: generate(random, ids, plan.new_tokens),
        },
        device=lm.device,
        warmup=1,
        repeats=plan.repeats,
    )
    return {
        "prompt_tokens": ids.shape[1],
        "new_tokens": plan.new_tokens,
        "e2e": {name: measurement.median for name, measurement in timed.items()},
        "ratio": timed["weights"].median / timed["random"].median,
        "runs": timed,
    }


def _print(figures: dict[str, Any], card: CostCard, latency: LatencyReport, peaks: Ceilings) -> None:
    """The short table, and the headline figures as JSON on the last line."""
    used, control = figures["utilisation"], figures["control"]
    print(card, latency, sep="\n\n", end="\n\n")
    cells = figures["grid"].cells
    print(f"{'prompt':>8} {'output':>8} {'TTFT':>10} {'TPOT':>10} {'E2E':>10} {'floor':>10}")
    for cell in cells:
        times = " ".join(f"{duration(value):>10}" for value in (cell.ttft, cell.tpot, cell.e2e, cell.floor))
        print(f"{cell.prompt:>8} {cell.output:>8} {times}")
    read = amount(card.weight_bytes_read + card.kv_bytes, "B")
    print(
        f"\nMBU  {used['mbu']:.1%}  ({read} read) ÷ {duration(latency.tpot.median)} ÷ {peaks.bandwidth:.3g} B/s"
    )
    print(
        f"MFU  {used['mfu_prefill']:.1%}  prefill of {used['mfu_prefill_tokens']} tokens: FLOPs ÷ TTFT ÷ peak"
    )
    print(f"random weights: E2E with ÷ without = {control['ratio']:.3f}")
    headline = {
        "bench": "profile",
        "model": card.name,
        "device": peaks.name,
        "ttft_s": round(latency.ttft.median, 6),
        "tpot_s": round(latency.tpot.median, 6),
        "tokens_per_s": round(latency.tokens_per_second, 2),
        "mbu": round(used["mbu"], 4),
        "mfu_prefill": round(used["mfu_prefill"], 4),
        "gap_share": figures["gaps"]["gap_share"] and round(figures["gaps"]["gap_share"], 4),
        "random_weights_ratio": round(control["ratio"], 4),
    }
    print(json.dumps(headline))
