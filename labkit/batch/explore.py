"""Policies tried out: an engine on a virtual clock in one call; decode steps over the batch size."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from labkit.batch.build import engine_for
from labkit.batch.engine import Engine
from labkit.batch.metrics import StepRecord
from labkit.batch.policy import Continuous, Policy
from labkit.batch.scheduler import Scheduler
from labkit.batch.virtual import CostModel, CostRunner, VirtualClock
from labkit.batch.workload import workload
from labkit.cache.tables import BlockTables
from labkit.models import LM


def virtual_engine(
    costs: CostModel,
    policy: Policy | None = None,
    *,
    blocks: int = 4096,
    block_size: int = 16,
    rows: int = 32,
    step_tokens: int = 2048,
    head_start: float = 10.0,
    share: bool = True,
) -> Engine:
    """An engine without a model: steps take what the cost model says. The arguments are those of `engine_for`."""
    clock = VirtualClock()
    scheduler = Scheduler(
        BlockTables(blocks, block_size, share=share),
        policy or Continuous(),
        rows=rows,
        step_tokens=step_tokens,
        head_start=head_start,
    )
    return Engine(CostRunner(clock, costs), scheduler, clock=clock)


def decode_curve(
    lm: LM,
    text: Sequence[int],
    sizes: Sequence[int],
    *,
    prompts: tuple[int, int] = (32, 96),
    steps: int = 6,
    rounds: int = 3,
    seed: int = 0,
    graphs: bool = False,
) -> tuple[dict[int, float], list[StepRecord]]:
    """The median time of a decode step at each batch size [s], and the records of all steps, prompts included.

    The sizes are gone through in rounds, up and down again, so that a machine that is busy for a moment does
    not bend the curve at one size; small sizes, whose steps are short, run more of them.

    Args:
        text: token ids to cut prompts from.
        sizes: rows in the batch.
        prompts: shortest and longest prompt [tokens].
        steps: decode steps at each size in a round, at least; four times as many for one row, twice for two.
        rounds: how often each size is run.
        graphs: of `engine_for`.
    """
    seconds: dict[int, list[float]] = {size: [] for size in sizes}
    records: list[StepRecord] = []
    # the prompts of a large batch take several steps, in which the first rows decode already
    outputs = {size: max(steps, 4 * steps // size) + 1 + size * prompts[1] // 1024 for size in sizes}
    most, longest = max(sizes), prompts[1] + max(outputs.values())
    with engine_for(lm, rows=most, blocks=most * (longest // 16 + 2), share=False, graphs=graphs) as engine:
        engine.run([one.request for one in workload(text, 2, prompts=prompts, outputs=(2, 4))])  # warm up
        for number in range(rounds):
            for size in sorted(sizes, reverse=number % 2 == 1):
                new_tokens = (outputs[size], outputs[size])
                load = workload(
                    text, size, prompts=prompts, outputs=new_tokens, seed=seed + size + 1000 * number
                )
                before = engine.metrics.count
                engine.run([one.request for one in load])
                new = engine.metrics.steps[before:]
                seconds[size] += [step.seconds for step in new if step.decodes == step.tokens == size]
                records += new
    return {size: statistics.median(found) for size, found in seconds.items()}, records
