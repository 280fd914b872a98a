"""Exercise: which layers stay at high precision under a budget of bytes."""

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from labkit.course.exercise import Exercise, expect


def keep_precise(damage: Sequence[float], sizes: Sequence[int], budget: int) -> list[int]:
    """The affordable set of layers that takes away most damage (labkit's own answer)."""
    return _best(damage, sizes, budget)


def _best(damage: Sequence[float], sizes: Sequence[int], budget: int) -> list[int]:
    """All sets, one after the other: 2ⁿ of them."""
    sums = [(0.0, 0)]  # of the set whose bits are the position
    for saved, size in zip(damage, sizes, strict=True):
        sums += [(before + saved, bytes_ + size) for before, bytes_ in sums]
    place = max(range(len(sums)), key=lambda each: sums[each][0] if sums[each][1] <= budget else -1.0)
    return [layer for layer in range(len(sizes)) if place >> layer & 1]


def _check(fn: Callable, rng: random.Random) -> None:
    damage, sizes, budget = _telling(rng)
    _judge(fn, damage, sizes, budget, "a tight budget")
    best = _best(damage, sizes, budget)
    _judge(fn, damage, sizes, sum(sizes[layer] for layer in best), "the best choice takes the whole budget")
    _judge(fn, damage, sizes, min(sizes) - 1, "no layer fits")
    _judge(fn, damage, sizes, sum(sizes), "all layers fit")
    damage = [rng.uniform(0.01, 1) for _ in range(12)]
    sizes = [rng.randrange(100_000, 900_000) for _ in range(12)]
    _judge(fn, damage, sizes, sum(sizes) // 3, "twelve layers")


def _telling(rng: random.Random) -> tuple[list[float], list[int], int]:
    """Layers for which every short cut leads to another choice than the best, and each to a different one."""
    count = 6  # as many as a failure's text shows
    while True:
        damage = [round(rng.uniform(0.05, 1), 3) for _ in range(count)]
        sizes = [rng.randrange(200_000, 900_000) for _ in range(count)]
        budget = int(sum(sizes) * rng.uniform(0.45, 0.6))
        best = _best(damage, sizes, budget)
        if count - 1 not in best or sum(sizes[layer] for layer in best) == budget:
            continue  # with the last layer in it, the best counted from 1 does not exist
        short = [sorted(choice) for _, choice in _short_cuts(damage, sizes, budget)]
        differ = all(short.count(choice) == 1 and len(choice) > 1 for choice in short)
        worth = sum(damage[layer] for layer in best)
        if differ and max(sum(damage[layer] for layer in choice) for choice in short) < worth - 0.01:
            return damage, sizes, budget


def _short_cuts(
    damage: Sequence[float], sizes: Sequence[int], budget: int
) -> Iterable[tuple[str, list[int]]]:
    """(failure, choice) of each typical mistake."""
    layers = range(len(sizes))
    by_ratio = sorted(layers, key=lambda each: -damage[each] / sizes[each])
    yield "greedy_damage", _fill(sorted(layers, key=lambda each: -damage[each]), sizes, budget)
    yield "greedy_ratio", _fill(by_ratio, sizes, budget)
    yield "stopped", _fill(by_ratio, sizes, budget, stop=True)
    yield "smallest", _fill(sorted(layers, key=lambda each: sizes[each]), sizes, budget)
    yield "in_order", _fill(list(layers), sizes, budget)
    yield "least_damage", _fill(sorted(layers, key=lambda each: damage[each]), sizes, budget)
    best = _best(damage, sizes, budget)
    yield "others", [layer for layer in layers if layer not in best]


def _fill(order: Sequence[int], sizes: Sequence[int], budget: int, stop: bool = False) -> list[int]:
    """One layer after the other while it fits."""
    chosen: list[int] = []
    for layer in order:
        if sizes[layer] <= budget:
            chosen.append(layer)
            budget -= sizes[layer]
        elif stop:
            break
    return chosen


def _judge(fn: Callable, damage: Sequence[float], sizes: Sequence[int], budget: int, case: str) -> None:
    given: dict[str, Any] = {"damage": damage, "sizes": sizes, "budget": budget, "case": case}
    got = fn(list(damage), list(sizes), budget)
    got = got.tolist() if hasattr(got, "tolist") else got
    flat = isinstance(got, list | tuple)
    mask = flat and len(got) == len(sizes) and all(isinstance(each, bool) for each in got)
    expect(not mask, "mask", got=got, **given)
    count = len(sizes)
    whole = flat and all(type(each) is int for each in got)
    expect(whole, "form", got=got, count=count, **given)
    best = _best(damage, sizes, budget)
    counted = case == "a tight budget" and sorted(got) == [layer + 1 for layer in best]
    expect(not counted, "from_one", got=got, want=best, count=count, **given)
    expect(all(0 <= each < count for each in got), "form", got=got, count=count, **given)
    expect(len(set(got)) == len(got), "twice", got=got, **given)
    for mistake, choice in _short_cuts(damage, sizes, budget):
        if case == "a tight budget" and mistake == "others":
            expect(sorted(got) != choice, mistake, got=got, want=best, **given)
    taken = sum(sizes[each] for each in got)
    expect(taken <= budget, "over_budget", got=got, taken=taken, over=taken - budget, **given)
    worth, most = (sum(damage[each] for each in choice) for choice in (got, best))
    if worth >= most - 1e-9:
        return
    here = {"got": got, "want": best, "worth": worth, "most": most, "left": budget - taken, **given}
    if case == "a tight budget":
        for mistake, choice in _short_cuts(damage, sizes, budget):
            expect(sorted(got) != sorted(choice), mistake, **here)
    exact = case in ("the best choice takes the whole budget", "all layers fit")
    strict = exact and worth >= sum(damage[each] for each in _best(damage, sizes, budget - 1)) - 1e-9
    expect(not strict, "not_all_spent", **here)
    expect(False, "not_best", **here)


EXERCISES = [
    Exercise(
        name="keep_precise",
        notebook="02_compress",
        level="extra",
        points=3,
        minutes=9,
        check=_check,
        reference=keep_precise,
        keeps_arguments=True,
    )
]
