"""The measured grid: TTFT and TPOT over prompt and output lengths, what the slider of notebook 01 moves over.

A greedy request for n tokens is the beginning of one for more, so a single run per prompt length serves
every output length: the cell (prompt, n) is read from its first n stamps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from labkit.profile.card import cost_card
from labkit.profile.datasheet import Ceilings
from labkit.profile.loop import generate
from labkit.timing import Latency, Measurement, percentile

if TYPE_CHECKING:
    from labkit.models import LM


@dataclass(frozen=True)
class Cell:
    """One point of the grid: medians over the repeats [s], and the floors of the cost card.

    `floor` is the least end-to-end time: floor TTFT + floor TPOT at the mean context × (output − 1).
    """

    prompt: int
    output: int
    ttft: float
    tpot: float
    e2e: float
    floor_ttft: float
    floor_tpot: float
    floor: float


@dataclass(frozen=True)
class Grid:
    """Cells, and every run they were made from: prompt length → its requests."""

    prompts: tuple[int, ...]
    outputs: tuple[int, ...]
    cells: tuple[Cell, ...]
    runs: dict[int, tuple[Latency, ...]]

    def ttft(self, prompt: int) -> Measurement:
        """TTFT of every run at a prompt length."""
        return Measurement(tuple(run.ttft for run in self.runs[prompt]))


def measure_grid(
    lm: LM,
    text_ids: torch.Tensor,
    ceilings: Ceilings,
    *,
    prompts: Sequence[int],
    outputs: Sequence[int],
    repeats: int = 3,
) -> Grid:
    """Run every prompt length `repeats` times, a round over all lengths at a time.

    Args:
        text_ids: ids of a text [1, at least the longest prompt]; tokenising is not part of these times.
        prompts: lengths in tokens.
        outputs: lengths in tokens, 2 or more (one token has no pace).
    """
    longest = max(outputs)
    for size in prompts:  # kernels are chosen by shape, so each length has a first time
        generate(lm, text_ids[:, :size], 2)
    taken: dict[int, list[Latency]] = {size: [] for size in prompts}
    for index in range(repeats):
        for size in prompts if index % 2 == 0 else reversed(prompts):
            made = generate(lm, text_ids[:, :size], longest).latency
            taken[size].append(Latency(0.0, tuple(stamp - made.sent for stamp in made.stamps)))
    runs = {size: tuple(latencies) for size, latencies in taken.items()}
    cells = tuple(cell(lm, ceilings, size, n, runs[size]) for size in prompts for n in outputs)
    return Grid(tuple(prompts), tuple(outputs), cells, runs)


def cell(lm: LM, ceilings: Ceilings, prompt: int, output: int, runs: Sequence[Latency]) -> Cell:
    """The grid's cell from runs of at least `output` tokens."""
    cut = [Latency(run.sent, run.stamps[:output]) for run in runs]
    card = cost_card(lm, ceilings, prompt=prompt, context=prompt + output // 2)
    return Cell(
        prompt=prompt,
        output=output,
        ttft=percentile([one.ttft for one in cut], 50),
        tpot=percentile([one.tpot for one in cut if one.tpot is not None], 50),
        e2e=percentile([one.e2e for one in cut], 50),
        floor_ttft=card.ttft_floor,
        floor_tpot=card.tpot_floor,
        floor=card.ttft_floor + card.tpot_floor * (output - 1),
    )
