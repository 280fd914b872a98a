"""How fast slimmed models answer one request, measured in turn, with all of the stove switched on."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from labkit.batch.request import Request
from labkit.batch.rungs import EVERYTHING, standing
from labkit.models import LM


def paces(
    models: Mapping[str, LM], prompt: Sequence[int], *, new: int = 8, rounds: int = 2
) -> dict[str, float]:
    """Time per output token of each model [s]: the best of some rounds, up the list and down again.

    On a GPU through fused kernels and CUDA graphs. The best round, since another program on the machine can only
    make a step longer.

    Args:
        prompt: token ids.
        new: tokens to write; the median of their steps is a round's result.
    """
    taken: dict[str, list[float]] = {name: [] for name in models}
    ask = Request(prompt=tuple(prompt), max_tokens=new + 2, ignore_eos=True)
    for number in range(rounds):
        for name in models if number % 2 == 0 else reversed(list(models)):
            with standing(models[name], EVERYTHING, rows=2, blocks=64, share=False) as engine:
                engine.run([Request(prompt=tuple(prompt), max_tokens=3, ignore_eos=True)])  # compile, capture
                done = engine.metrics.count
                engine.run([ask])
                steps = [one.seconds for one in engine.metrics.steps[done:] if one.decodes == one.tokens == 1]
            taken[name].append(statistics.median(steps[1:]))
    return {name: min(seconds) for name, seconds in taken.items()}
