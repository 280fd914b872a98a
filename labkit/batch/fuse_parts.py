"""The parts of `labkit bench fuse` that run on a whole model; what they return is described in bench_fuse.py."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass, replace
from typing import Any

from labkit import fuse
from labkit.batch import bench
from labkit.batch.bench_parts import say
from labkit.batch.engine import Engine
from labkit.batch.fuse_load import under_load
from labkit.batch.peers import generate_pace
from labkit.batch.rungs import CONTROL, EVERYTHING, PLAIN, RUNGS, Rung, answer, in_rounds, steps_traced
from labkit.cache.attention import position_limit
from labkit.cache.kv_study import kernel_rates
from labkit.fuse import bench_attention, bench_kernels
from labkit.fuse.contest import reason
from labkit.kernels.device import available
from labkit.models import LM
from labkit.models import load as load_model
from labkit.profile import Ceilings, cost_card, mbu, mfu, shape_of
from labkit.timing import Measurement, duration


@dataclass(frozen=True)
class Plan:
    """Sizes of the benchmark.

    Args:
        load: of `labkit bench batch`.
        prompt, new: the ladder's request [tokens].
        rounds, repeats: how often the ladder is climbed, and requests on a rung each time.
        prompts: whose first tokens are timed [tokens].
        tokens, long: of the kernels' steps, see fuse.bench_kernels.
        compiling: with torch.compile beside the kernels, and as a rung.
        sizes: (rows, tokens) of prefill attention.
        timed: how often a kernel is timed.
        rows, blocks: of the ladder's engine.
    """

    load: bench.Plan
    prompt: int = 128
    new: int = 128
    rounds: int = 2
    repeats: int = 2
    prompts: tuple[int, ...] = (512, 2048)
    tokens: tuple[int, ...] = (1, 4, 16)
    long: tuple[int, ...] = (2048,)
    compiling: bool = True
    sizes: tuple[tuple[int, int], ...] = ((1, 2048), (1, 8192), (4, 1024))
    timed: int = 20
    rows: int = 16
    blocks: int = 1024


def plan_for(device_type: str) -> Plan:
    """Under six minutes for a 7B on an H200; under one for labcoder on two CPU cores."""
    if device_type == "cuda":
        return Plan(bench.plan_for(device_type))
    return Plan(
        replace(bench.plan_for(device_type), requests=16, new=32), new=32, repeats=2, prompts=(256, 1024), timed=7,
        tokens=(1, 16), long=(), compiling=False, sizes=((1, 512), (4, 128)),
    )  # fmt: skip


@dataclass(frozen=True)
class Kitchen:
    """What every part needs."""

    lm: LM
    asked: str
    text: list[int]
    peaks: Ceilings
    plan: Plan


def ladder(kitchen: Kitchen) -> dict[str, Any]:
    lm, plan = kitchen.lm, kitchen.plan
    card = cost_card(lm, kitchen.peaks, prompt=plan.prompt, context=plan.prompt + plan.new // 2)
    name = lm.name if kitchen.asked == "auto" else kitchen.asked
    random = load_model(name, device=str(lm.device), dtype=lm.dtype, random_weights=True)
    traced: dict[str, dict[str, Any]] = {}

    def work(engine: Engine, rung: Rung, number: int) -> list[float]:
        answer(engine, _prompt(kitchen, 0), 8, 0)  # compiles, tunes, captures
        paces = []
        for repeat in range(plan.repeats):
            seed = number * plan.repeats + repeat
            ticket = answer(engine, _prompt(kitchen, 1 + seed), plan.new, seed)
            paces.append(ticket.latency().tpot or 0.0)
        if number == 0:
            traced[rung.name] = steps_traced(lm, engine, _prompt(kitchen, 0))
        say(f"    {rung.name}: {duration(min(paces))} … {duration(max(paces))}")
        return paces

    rungs = [rung for rung in RUNGS if plan.compiling or not rung.compiled]
    found = in_rounds(
        {False: lm, True: random}, rungs, work, rounds=plan.rounds, say=say, rows=plan.rows, blocks=plan.blocks,
        share=False,
    )  # fmt: skip
    del random
    paced = {name: _paced(kitchen, name, one, traced.get(name)) for name, one in found.items()}
    control = [paced[rung.name].get("tpot") for rung in (EVERYTHING, CONTROL)]
    report = str(fuse.apply(lm))
    fuse.remove(lm)
    return {
        "prompt": plan.prompt,
        "new": plan.new,
        "bytes_a_step": card.weight_bytes_read + card.kv_bytes,
        "tpot_floor": card.tpot_floor,
        "rungs": paced,
        "control": control[0] / control[1] if control[0] and control[1] else None,
        "fused": report,
    }


def _paced(
    kitchen: Kitchen, name: str, one: dict[str, Any], step: dict[str, Any] | None = None
) -> dict[str, Any]:
    """A rung's or a peer's figures, and its line."""
    if "runs" not in one:
        return one
    plan, runs = kitchen.plan, one["runs"]
    card = cost_card(kitchen.lm, kitchen.peaks, prompt=plan.prompt, context=plan.prompt + plan.new // 2)
    share = mbu(card.weight_bytes_read, card.kv_bytes, runs.median, kitchen.peaks.bandwidth)
    said = ""
    if step is not None:
        one["step"] = step
        said = (
            f", {step['kernels']:.0f} kernels, {step['launches']:.0f} launches" if "kernels" in step else ""
        )
    say(
        f"  {name:<26} {1 / runs.median:8,.1f} tokens/s  TPOT {runs}, {share:.0%} of the memory ceiling{said}"
    )
    return {
        "tpot": runs.median, "low": runs.low, "high": runs.high, "tokens_per_second": 1 / runs.median, "share": share,
        **one,
    }  # fmt: skip


def _prompt(kitchen: Kitchen, number: int, length: int = 0) -> list[int]:
    """Another piece of real text each time."""
    length = length or kitchen.plan.prompt
    start = 97 * number % (len(kitchen.text) - length)
    return kitchen.text[start : start + length]


def peers(kitchen: Kitchen) -> dict[str, Any]:
    found = {}
    for name, static in (("generate", False), ("generate, static cache", True)):
        try:
            paces, compiled = generate_pace(
                kitchen.lm, _prompt(kitchen, 0), kitchen.plan.new, static=static, warmup=2 if static else 1,
                repeats=kitchen.plan.repeats,
            )  # fmt: skip
            one: dict[str, Any] = {"runs": Measurement(tuple(paces)), "compiled": compiled}
        except Exception as error:  # a setting that this build lacks is a finding
            one = {"unavailable": reason(error)}
            say(f"  {name}: {one['unavailable']}")
        found[name] = _paced(kitchen, f"{name}{', compiled' if one.get('compiled') else ''}", one)
    return found


def ttft(kitchen: Kitchen) -> list[dict[str, Any]]:
    lm, plan = kitchen.lm, kitchen.plan
    most = position_limit(lm.config) or max(plan.prompts)
    found = []
    for length in (length for length in plan.prompts if length < most):
        flops = cost_card(lm, kitchen.peaks, prompt=length).prefill.flops

        def work(engine: Engine, rung: Rung, number: int, length: int = length) -> list[float]:
            tickets = [answer(engine, _prompt(kitchen, i, length), 1, i) for i in range(2 + plan.repeats)]
            return [ticket.latency().ttft for ticket in tickets[2:]]

        rungs = in_rounds(
            {False: lm}, (PLAIN, EVERYTHING), work, rounds=1, say=say, rows=plan.rows, blocks=plan.blocks,
            share=False,
        )  # fmt: skip
        for name, one in rungs.items():
            if "runs" in one:
                seconds = one["runs"].median
                one |= {"ttft": seconds, "mfu": mfu(flops, seconds, kitchen.peaks.flops)}
                say(f"  {length:,} tokens, {name}: TTFT {one['runs']}, MFU {one['mfu']:.1%}")
        found.append({"prompt": length, "flops": flops, "rungs": rungs})
    return found


def kernels(kitchen: Kitchen) -> dict[str, Any]:
    lm, plan = kitchen.lm, kitchen.plan
    try:
        liger: str | None = importlib.metadata.version("liger-kernel")
    except importlib.metadata.PackageNotFoundError:
        liger = None
        say('  Liger is not installed here: pip install -e ".[peers]"')
    cases = bench_kernels.kernels(
        shape_of(lm.config), lm.dtype, lm.device, kitchen.peaks.bandwidth, tokens=plan.tokens, long=plan.long,
        compiling=plan.compiling, repeats=plan.timed, say=say,
    )  # fmt: skip
    return {"compiles": available(lm.device), "liger": liger, "cases": cases}


def attention(kitchen: Kitchen) -> dict[str, Any]:
    lm = kitchen.lm
    found: dict[str, Any] = {
        "prefill": bench_attention.prefill(
            lm.device, lm.dtype, kitchen.plan.sizes, repeats=kitchen.plan.timed, say=say
        ),
        "decode": [],
    }
    if lm.device.type == "cuda":
        found["decode"] = kernel_rates(lm.device, kitchen.peaks.bandwidth)
    for one in found["decode"]:
        say(f"  decode, {one['shape']:<16} {one['rate'] / 1e9:7,.0f} GB/s, {one['share']:.0%} of reading")
    return found


def load(kitchen: Kitchen) -> dict[str, Any]:
    return under_load(kitchen.lm, kitchen.text, kitchen.plan.load, kitchen.plan.repeats, say)
