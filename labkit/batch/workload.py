"""Requests to measure with: seeded prompts cut from real text, lengths and arrivals from stated distributions."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from labkit.batch.request import Request
from labkit.errors import LabkitError


@dataclass(frozen=True)
class Arrival:
    """A request and when it comes [s from the start]."""

    request: Request
    at: float = 0.0


def workload(
    text: Sequence[int],
    count: int,
    *,
    prompts: tuple[int, int] = (32, 512),
    outputs: tuple[int, int] | Callable[[random.Random], int] = (128, 128),
    rate: float | None = None,
    seed: int = 0,
) -> list[Arrival]:
    """`count` greedy requests that ignore the end of text, so that their lengths are what was asked.

    Args:
        text: token ids to cut prompts from.
        prompts: shortest and longest prompt [tokens], uniform.
        outputs: shortest and longest output [tokens], uniform; or a function that draws one.
        rate: arrivals per second, Poisson; None means that all come at once.
        seed: equal seeds give equal workloads.

    Raises:
        LabkitError: the text is shorter than the longest prompt.
    """
    if len(text) <= prompts[1]:
        raise LabkitError(
            f"A text of {len(text)} tokens has no prompt of {prompts[1]}.", "Give a longer text."
        )
    draw, now, arrivals = random.Random(seed), 0.0, []
    for _ in range(count):
        length = draw.randint(*prompts)
        start = draw.randrange(len(text) - length)
        new = outputs(draw) if callable(outputs) else draw.randint(*outputs)
        now += draw.expovariate(rate) if rate else 0.0
        request = Request(prompt=tuple(text[start : start + length]), max_tokens=new, ignore_eos=True)
        arrivals.append(Arrival(request, now))
    return arrivals


def skewed(short: tuple[int, int], long: tuple[int, int], share: float) -> Callable[[random.Random], int]:
    """Output lengths of which a `share` is long: what makes a static batch wait for its last row."""
    return lambda draw: draw.randint(*(long if draw.random() < share else short))
