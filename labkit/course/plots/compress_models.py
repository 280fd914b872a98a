"""Pictures of notebook 02 on smaller models: pruning and recovery, students, and everything on one map."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from labkit.course.style import (
    BLACK,
    BLUE,
    FLOOR,
    GREEN,
    GREY,
    MEASURED,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    figure,
    styled,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LINES = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION)
FAMILY = {
    "plain": (GREY, "s"),
    "bits": (ORANGE, "o"),
    "pruned": (BLUE, "^"),
    "student": (GREEN, "D"),
    "ready-made": (PURPLE, "v"),
}
"""Colour and marker of a kind of compression on the map."""


@styled()
def removed(
    shares: Sequence[float], found: Mapping[str, Sequence[float]], plain: float, label: str
) -> Figure:
    """Quality over the share of weights that are gone, a line for each way to choose them."""
    drawn, axes = figure(6.8, 3.4)
    for (name, line), colour in zip(found.items(), LINES, strict=False):
        axes.plot([100 * share for share in shares], line, color=colour, label=name, **MEASURED)
    axes.axhline(plain, **FLOOR)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(lambda value, _: "")
    axes.set_xlabel("weights removed (%)")
    axes.set_ylabel(f"{label}\n(logarithmic; dotted: nothing removed)")
    axes.legend(loc="upper left")
    return drawn


@styled()
def learning(
    curves: Mapping[str, Sequence[tuple[float, float]]], label: str, floor: float | None = None
) -> Figure:
    """A quantity over training steps, a line for each run.

    Args:
        curves: name → (step, value).
        floor: the teacher's, or the model's before.
    """
    drawn, axes = figure(7.2, 3.4)
    for (name, points), colour in zip(curves.items(), LINES, strict=False):
        steps, values = zip(*points, strict=True)
        few = len(points) <= 30
        axes.plot(steps, values, color=colour, label=name, marker="o" if few else "", markersize=4)
    if floor is not None:
        axes.axhline(floor, **FLOOR)
    axes.set_xlabel("training steps")
    axes.set_ylabel(label)
    axes.legend(loc="upper right", fontsize=9)
    return drawn


@dataclass(frozen=True)
class Place:
    """A model on the map.

    Args:
        family: of FAMILY.
        size: stored weights [B].
        speed: output tokens per second of one row.
        loss: bits per byte above the plain model's.
    """

    name: str
    family: str
    size: float
    speed: float
    loss: float


@styled()
def pareto(places: Sequence[Place], title: str) -> Figure:
    """Quality over speed, numbered, the area of a mark being the size; a line joins those that nobody beats in both."""
    drawn, axes = figure(8.4, 4.4)
    biggest = max(place.size for place in places)
    best = front(places)
    axes.plot(
        [place.speed for place in best], [place.loss for place in best], color=BLACK, linewidth=1, zorder=0
    )
    for number, place in enumerate(places, 1):
        colour, marker = FAMILY[place.family]
        axes.scatter(
            place.speed, place.loss, s=60 + 420 * place.size / biggest, color=colour, marker=marker, alpha=0.75,
            edgecolors="white", linewidths=0.8, label=f"{number}  {place.name}, {_size(place.size)}",
        )  # fmt: skip
        axes.annotate(
            str(number), (place.speed, place.loss), xytext=(0, 11 if number % 2 else -19), textcoords="offset points",
            ha="center", fontsize=9,
        )  # fmt: skip
    axes.invert_yaxis()  # up and right is better
    axes.margins(x=0.12, y=0.14)
    axes.set_xlabel("output of one row (tokens/s)")
    axes.set_ylabel("bits per byte above the plain model's\n(up is better)")
    axes.set_title(title)
    legend = axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=9, labelspacing=0.9)
    for handle in cast(list[Any], legend.legend_handles):
        handle.set_sizes([60])
    return drawn


def front(places: Sequence[Place]) -> list[Place]:
    """Those than which none is both faster and better, the slowest first."""
    best: list[Place] = []
    for place in sorted(places, key=lambda each: (-each.speed, each.loss)):
        if not best or place.loss < best[-1].loss:
            best.append(place)
    return best[::-1]


def _size(size: float) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
