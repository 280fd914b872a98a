"""Mixed precision under a budget: which layer gets which format.

Each layer chooses one of its formats, the bytes may not exceed the budget, and the sum of damages should be least: the
knapsack problem with choices. `greedy` spends bytes where they save most damage per byte; `allocate` refines that by
dynamic programming over bytes, which is exact for this sum.

Sinha and Zoltners 1979, "The multiple-choice knapsack problem".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import gcd
from typing import Any

import numpy as np

from labkit.compress.sensitivity import Sensitivity
from labkit.errors import LabkitError
from labkit.kernels.formats import Format

STATES = 1 << 18
"""Sizes that are told apart; finer ones are rounded up."""


def allocate(sensitivities: Iterable[Sensitivity], budget: int) -> dict[str, Format | None]:
    """A plan for `quantize`: the format of every layer.

    Args:
        sensitivities: all choices of all layers.
        budget: bytes that all these layers may take together; never exceeded.

    Raises:
        LabkitError: not even the smallest formats fit.
    """
    choices = _choices(sensitivities, budget)
    simple, exact = _greedy(choices, budget), _exact(choices, budget)
    best = min((plan for plan in (exact, simple) if plan is not None), key=total_damage)
    return {name: each.format for name, each in best.items()}


def greedy(sensitivities: Iterable[Sensitivity], budget: int) -> dict[str, Format | None]:
    """Start with the smallest formats, then take the change that saves most damage per byte, while one fits.

    Raises:
        LabkitError: not even the smallest formats fit.
    """
    return {name: each.format for name, each in _greedy(_choices(sensitivities, budget), budget).items()}


def total_damage(plan: Mapping[str, Sensitivity]) -> float:
    """Sum of the layers' KL [nats]."""
    return sum(max(each.kl, 0.0) for each in plan.values())


def _choices(sensitivities: Iterable[Sensitivity], budget: int) -> dict[str, list[Sensitivity]]:
    found: dict[str, list[Sensitivity]] = {}
    for each in sensitivities:
        found.setdefault(each.module, []).append(each)
    least = sum(min(each.bytes for each in options) for options in found.values())
    if not found or least > budget:
        raise LabkitError(
            f"These layers take {least:,} bytes at least, more than a budget of {budget:,}.",
            "Raise the budget, or measure smaller formats too.",
        )
    return found


def _greedy(choices: Mapping[str, list[Sensitivity]], budget: int) -> dict[str, Sensitivity]:
    plan = {name: min(options, key=lambda each: (each.bytes, each.kl)) for name, options in choices.items()}
    left = budget - sum(each.bytes for each in plan.values())
    while True:
        best, rate = None, 0.0
        for name, options in choices.items():
            now = plan[name]
            for each in options:
                saved, price = max(now.kl, 0.0) - max(each.kl, 0.0), each.bytes - now.bytes
                if saved > 0 and price <= left and saved / max(price, 1e-9) > rate:
                    best, rate = each, saved / max(price, 1e-9)
        if best is None:
            return plan
        left -= best.bytes - plan[best.module].bytes
        plan[best.module] = best


def _exact(choices: Mapping[str, list[Sensitivity]], budget: int) -> dict[str, Sensitivity] | None:
    """The best plan by dynamic programming; None if rounding sizes up leaves none."""
    least = {name: min(each.bytes for each in options) for name, options in choices.items()}
    extra = [each.bytes - least[name] for name, options in choices.items() for each in options]
    most = sum(max(each.bytes for each in options) - least[name] for name, options in choices.items())
    unit = max(gcd(*extra), -(-most // STATES), 1)
    states = min(budget - sum(least.values()), most) // unit + 1
    damage, taken = np.zeros(states), list[Any]()
    for name, options in choices.items():
        best, which = np.full(states, np.inf), np.zeros(states, dtype=np.int16)
        for number, each in enumerate(options):
            cost = -(-(each.bytes - least[name]) // unit)
            if cost < states:
                tried = damage[: states - cost] + max(each.kl, 0.0)
                better = tried < best[cost:]
                best[cost:][better] = tried[better]
                which[cost:][better] = number
        damage, taken = best, [*taken, which]
    left, plan = states - 1, {}
    if not np.isfinite(damage[left]):
        return None
    for (name, options), which in reversed(list(zip(choices.items(), taken, strict=True))):
        each = options[which[left]]
        plan[name] = each
        left -= -(-(each.bytes - least[name]) // unit)
    return {name: plan[name] for name in choices}
