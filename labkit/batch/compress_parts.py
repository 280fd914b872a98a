"""The parts of `labkit bench compress` that run on a whole model; bench_compress.py describes what they return."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from labkit import fuse
from labkit.batch import compress_quality
from labkit.batch.bench import release
from labkit.batch.bench_parts import say
from labkit.batch.build import engine_for
from labkit.batch.engine import Engine
from labkit.batch.explore import decode_curve
from labkit.batch.rungs import EVERYTHING, answer, standing
from labkit.compress import bitsandbytes_model, quantize
from labkit.fuse.bench_packed import products
from labkit.fuse.contest import reason
from labkit.models import LM
from labkit.profile import Ceilings, cost_card, mbu, shape_of
from labkit.timing import Measurement

SCHEMES = ("int8", "fp8", "w8a8", "int4")
"""Of labkit.compress.quantize; the model's own precision stands before them."""


@dataclass(frozen=True)
class Plan:
    """Sizes of the benchmark.

    Args:
        prompt, new: the request that is timed alone [tokens].
        rounds, repeats: how often the precisions are gone through, and requests on each every time.
        sizes: rows of the decode curve, whose prompts are about as long as `prompt`.
        steps: of the curve at each size.
        tokens: of the products that are timed alone.
        timed: how often a product is timed.
        rows, blocks: of the engine for one request.
        texts, characters: what quality is measured on; all characters if None.
    """

    prompt: int = 128
    new: int = 128
    rounds: int = 2
    repeats: int = 2
    sizes: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    steps: int = 8
    tokens: tuple[int, ...] = (1, 4, 16, 64, 256)
    timed: int = 15
    rows: int = 16
    blocks: int = 1024
    texts: tuple[str, ...] = ("fixed", "stdlib")
    characters: int | None = None


def plan_for(device_type: str) -> Plan:
    """About three minutes for a 7B on an H200; under one for labcoder on two CPU cores."""
    if device_type == "cuda":
        return Plan()
    return Plan(new=32, sizes=(1, 4, 16, 32), tokens=(1, 16), timed=5, texts=("fixed",), characters=30_000)


@dataclass(frozen=True)
class Kitchen:
    """What every part needs; `made` keeps the quantised models from one part to the next."""

    lm: LM
    asked: str
    text: list[int]
    peaks: Ceilings
    plan: Plan
    made: dict[str, LM] = field(default_factory=dict)

    @property
    def own(self) -> str:
        """The model's own precision, as the tables call it."""
        return {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}.get(
            str(self.lm.dtype).removeprefix("torch."), str(self.lm.dtype)
        )

    def model(self, scheme: str) -> LM:
        """The model in a precision, made once."""
        if scheme == self.own:
            return self.lm
        if scheme not in self.made:
            self.made[scheme] = quantize(self.lm, scheme)
        return self.made[scheme]


def in_turns(
    kitchen: Kitchen, work: Callable[[LM, str, int], list[float]], rounds: int
) -> dict[str, dict[str, Any]]:
    """Do some work in every precision, up the list and down again: {"runs"} or {"unavailable"} by name."""
    names = [kitchen.own, *SCHEMES]
    taken: dict[str, list[float]] = {name: [] for name in names}
    failed: dict[str, dict[str, Any]] = {}
    for number in range(rounds):
        for name in names if number % 2 == 0 else reversed(names):
            if name in failed:
                continue
            try:
                taken[name] += work(kitchen.model(name), name, number)
            except Exception as error:  # a precision that this machine lacks is a finding; the others go on
                failed[name] = {"unavailable": reason(error)}
                say(f"  {name}: {failed[name]['unavailable']}")
    return {name: failed.get(name) or {"runs": Measurement(tuple(taken[name]))} for name in names}


def precision(kitchen: Kitchen) -> dict[str, Any]:
    """One request alone, with all of the stove on."""
    plan = kitchen.plan

    def work(lm: LM, name: str, number: int) -> list[float]:
        with standing(lm, EVERYTHING, rows=plan.rows, blocks=plan.blocks, share=False) as engine:
            return paces(kitchen, engine, number)

    found = in_turns(kitchen, work, plan.rounds)
    return {name: figured(kitchen, name, one, kitchen.model(name)) for name, one in found.items()}


def paces(kitchen: Kitchen, engine: Engine, number: int = 0) -> list[float]:
    """Times per output token of some requests, one after the other [s]."""
    plan = kitchen.plan
    answer(engine, prompt(kitchen, 0), 8, 0)  # compiles, tunes, captures
    tickets = []
    for repeat in range(plan.repeats):
        seed = number * plan.repeats + repeat
        tickets.append(answer(engine, prompt(kitchen, 1 + seed), plan.new, seed))
    return [ticket.latency().tpot or 0.0 for ticket in tickets]


def prompt(kitchen: Kitchen, number: int) -> list[int]:
    """Another piece of real text each time."""
    start = 97 * number % (len(kitchen.text) - kitchen.plan.prompt)
    return kitchen.text[start : start + kitchen.plan.prompt]


def figured(kitchen: Kitchen, name: str, one: dict[str, Any], lm: LM) -> dict[str, Any]:
    """A precision's figures, and its line."""
    if "runs" not in one:
        return one
    plan, runs = kitchen.plan, one["runs"]
    card = cost_card(lm, kitchen.peaks, prompt=plan.prompt, context=plan.prompt + plan.new // 2)
    share = mbu(card.weight_bytes_read, card.kv_bytes, runs.median, kitchen.peaks.bandwidth)
    say(
        f"  {name:<24} {lm.weight_bytes / 1e9:7.3f} GB {1 / runs.median:9,.1f} tokens/s  TPOT {runs}, "
        f"{share:.0%} of its memory ceiling"
    )
    return {
        "weight_bytes": lm.weight_bytes, "bytes_a_step": card.weight_bytes_read + card.kv_bytes, "tpot": runs.median,
        "low": runs.low, "high": runs.high, "tokens_per_second": 1 / runs.median, "share": share, **one,
    }  # fmt: skip


def batch(kitchen: Kitchen) -> dict[str, Any]:
    """A decode step over the number of rows, in each precision."""
    plan, curves = kitchen.plan, {}
    about = (3 * plan.prompt // 4, 5 * plan.prompt // 4)
    for name in (kitchen.own, *SCHEMES):
        lm = kitchen.model(name)
        try:
            fuse.apply(lm)
            curve, _ = decode_curve(
                lm, kitchen.text, plan.sizes, prompts=about, steps=plan.steps, rounds=plan.rounds, graphs=True
            )
        finally:
            fuse.remove(lm)
            release(lm)
        curves[name] = curve
        said = ", ".join(f"{size}: {size / seconds:,.0f}" for size, seconds in curve.items())
        say(f"  {name:<8} tokens/s at rows {said}")
    return {"prompts": about, "seconds": curves}


def kernels(kitchen: Kitchen) -> list[dict[str, Any]]:
    """The products of a layer alone, beside others' kernels."""
    lm, plan = kitchen.lm, kitchen.plan
    return products(
        shape_of(lm.config), lm.dtype, lm.device, kitchen.peaks.bandwidth, tokens=plan.tokens, repeats=plan.timed,
        say=say,
    )  # fmt: skip


def quality(kitchen: Kitchen) -> dict[str, Any]:
    """What few bits cost, on labcoder."""
    plan = kitchen.plan
    return compress_quality.quality(str(kitchen.lm.device), plan.texts, plan.characters)


def bitsandbytes(kitchen: Kitchen) -> dict[str, Any]:
    """bitsandbytes' own layers in our engine, with graphs where they can be captured."""
    found = {}
    for kind in ("int8", "nf4"):
        name = f"bitsandbytes {kind}"
        try:
            lm = bitsandbytes_model(kitchen.lm, kind)
            try:
                fuse.apply(lm)
                with engine_for(
                    lm,
                    rows=1,
                    blocks=kitchen.plan.blocks,
                    share=False,
                    step_tokens=kitchen.plan.prompt,
                    graphs=True,
                ) as engine:
                    one: dict[str, Any] = {"runs": Measurement(tuple(paces(kitchen, engine)))}
            finally:
                fuse.remove(lm)
            found[name] = figured(kitchen, name, one, lm)
            del lm
        except Exception as error:  # what this build lacks is a finding
            found[name] = {"unavailable": reason(error)}
            say(f"  {name}: {found[name]['unavailable']}")
        release(kitchen.lm)
    return found
