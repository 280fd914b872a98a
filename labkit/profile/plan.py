"""How much `labkit bench profile` measures: enough to be steady, little enough to wait for."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from labkit.profile.loop import generate

if TYPE_CHECKING:
    import torch

    from labkit.models import LM

_PROBED = 256  # prompt tokens of the run that tells how fast this machine is


@dataclass(frozen=True)
class Plan:
    """Sizes of a benchmark. `budget`: seconds that its generations may take, loading and ceilings apart."""

    prompts: tuple[int, ...]
    budget: float
    outputs: tuple[int, ...] = (8, 16, 32, 64)
    new_tokens: int = 32
    repeats: int = 3
    traced: int = 4
    prompt_characters: int = 1500


def plan_for(device_type: str) -> Plan:
    """The plan for "cuda" (under three minutes for a 7B on an H200) or for a CPU (a minute for labcoder)."""
    if device_type == "cuda":
        return Plan(prompts=(64, 256, 1024, 4096), budget=120)
    return Plan(prompts=(64, 256, 1024, 2048), budget=40)


def fitting(plan: Plan, lm: LM, ids: torch.Tensor) -> Plan:
    """The plan cut to the model's positions and, after a short probe, to its budget.

    Long outputs go first, then long prompts, then repeats, of which two always stay; then tokens.
    """
    limit = getattr(lm.config, "max_position_embeddings", None) or max(plan.prompts) + max(plan.outputs)
    room = max(1, limit - max(*plan.outputs, plan.new_tokens))
    plan = dataclasses.replace(plan, prompts=tuple(size for size in plan.prompts if size <= room) or (room,))
    probed = ids[:, : min(_PROBED, max(plan.prompts))]
    generate(lm, probed, 2)
    probe = generate(lm, probed, 6).latency
    return within_budget(plan, probe.ttft / probed.shape[1], fmean(probe.itl))


def within_budget(plan: Plan, prefill_each: float, decode_each: float) -> Plan:
    """The plan cut to its budget, at so many seconds a prompt token and an output token."""
    while estimate(plan, prefill_each, decode_each) > plan.budget:
        if len(plan.outputs) > 2:
            plan = dataclasses.replace(plan, outputs=plan.outputs[:-1])
        elif len(plan.prompts) > 2:
            plan = dataclasses.replace(plan, prompts=plan.prompts[:-1])
        elif plan.repeats > 2:
            plan = dataclasses.replace(plan, repeats=plan.repeats - 1)
        elif plan.new_tokens > 8:
            plan = dataclasses.replace(plan, new_tokens=plan.new_tokens // 2)
        else:
            break
    return plan


def estimate(plan: Plan, prefill_each: float, decode_each: float) -> float:
    """Seconds for all generations of the benchmark, at so many seconds a prompt token and an output token."""

    def request(prompt: float, output: int) -> float:
        return prompt * prefill_each + output * decode_each

    grid = sum(request(size, max(plan.outputs)) for size in plan.prompts) * plan.repeats
    warm_up = sum(request(size, 2) for size in plan.prompts)
    # latency once, stages with and without waiting, their warm-ups; a token is about 3.5 characters of code
    one_prompt = request(plan.prompt_characters / 3.5, plan.new_tokens) * (3 * plan.repeats + 2)
    control = request(plan.prompts[0], plan.new_tokens) * 2 * (plan.repeats + 1)
    return grid + warm_up + one_prompt + control
