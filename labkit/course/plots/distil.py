"""Pictures of notebook 02 on distillation: how students learn, and what each ingredient adds.

Both take what `labkit.compress.distil.study.ablation` returns, or the part "ablation" of a record.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from labkit.course.style import (
    BLACK,
    BLUE,
    FLOOR,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    YELLOW,
    figure,
    styled,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = (GREY, SKY, BLACK, BLUE, GREEN, PURPLE, ORANGE, VERMILION, YELLOW)
"""In the order of the variants, the same in both pictures."""

MARKERS = "sv^oDPX*h"


@styled()
def learning(ablation: Mapping[str, Any]) -> Figure:
    """Bits per byte on held-out training text over tokens read, a line a variant: the mean, its band all seeds."""
    drawn, axes = figure(8.4, 3.8)
    runs, ends = ablation["runs"], []
    for name, colour, marker in zip(ablation["variants"], COLOURS, MARKERS, strict=False):
        mine = [run["curve"] for run in runs if run["variant"] == name]
        tokens = [point["tokens"] / 1e6 for point in mine[0]]
        columns = list(zip(*([point["bits_per_byte"] for point in curve] for curve in mine), strict=True))
        means = [sum(column) / len(column) for column in columns]
        axes.plot(tokens, means, color=colour, marker=marker, markersize=4, linewidth=1.6, label=name)
        lows, highs = ([pick(column) for column in columns] for pick in (min, max))
        axes.fill_between(tokens, lows, highs, color=colour, alpha=0.15, linewidth=0)
        ends += means[len(means) // 4 :]
    floor = runs[0].get("floor")
    if floor is not None:
        axes.axhline(floor, **FLOOR)
    bottom = min(ends) if floor is None else floor
    # the first tokens teach so much that they would hide all the rest
    axes.set_ylim(bottom - 0.05 * (max(ends) - bottom), max(ends) + 0.05 * (max(ends) - bottom))
    axes.set_xlabel("tokens read (millions)")
    axes.set_ylabel("bits per byte, held-out text\n(dotted: the teacher)")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=9)
    return drawn


@styled()
def margins(ablation: Mapping[str, Any], base: str, label: str = "outputs alone") -> Figure:
    """Bits per byte that each variant costs more than the base: the interval over the text, a dot for each seed.

    Args:
        base: the variant that all are held against.
        label: what it is called in the picture.
    """
    found = ablation["margins"]
    drawn, axes = figure(8.0, 0.9 + 0.42 * len(found))
    colours = dict(zip(ablation["variants"], COLOURS, strict=False))
    for line, (name, one) in enumerate(found.items()):
        axes.plot([one["low"], one["high"]], [line, line], color=colours[name], linewidth=5, alpha=0.45)
        axes.plot(one["mean"], line, color=colours[name], marker="|", markersize=15, markeredgewidth=2.5)
        axes.plot(one["seeds"], [line] * len(one["seeds"]), "o", color=BLACK, markersize=3.5)
    axes.axvline(0, color=GREY, linewidth=1)
    axes.set_yticks(range(len(found)), list(found))
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    mean = ablation["summary"][base]["bits_per_byte"]["mean"]
    axes.set_xlabel(f"bits per byte above {label} ({mean:.3f}); left of 0 is better")
    return drawn
