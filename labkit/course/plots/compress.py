"""Pictures of notebook 02 on bits: a weight's grid, errors by group, speed by rows, layer sensitivity, the budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from labkit.course.style import (
    BLACK,
    BLUE,
    FLOOR,
    GREEN,
    GREY,
    LIGHT,
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

PRECISION = {
    "bf16": GREY,
    "fp16": GREY,
    "fp32": GREY,
    "int8": BLUE,
    "fp8": SKY,
    "w8a8": GREEN,
    "int4": ORANGE,
}
"""One colour a precision, in every picture of the notebook."""


@styled()
def grid(weights: Sequence[float], levels: Sequence[float], title: str) -> Figure:
    """A histogram of weights, and below it the numbers that the format can say, with how many weights each gets.

    Args:
        weights: of one matrix, row or group.
        levels: values after rounding, of the same weights, in the same order.
    """
    drawn, axes = figure(7.4, 3.3)
    heights, _, _ = axes.hist(weights, bins=101, color=LIGHT, edgecolor=LIGHT)
    used = sorted(set(levels))
    axes.vlines(used, -0.09 * max(heights), 0, color=ORANGE, linewidth=1.1 if len(used) < 64 else 0.4)
    off = (
        sum((a - b) ** 2 for a, b in zip(weights, levels, strict=True)) / sum(a * a for a in weights)
    ) ** 0.5
    axes.set_title(f"{title}: {len(used)} different values, off by {off:.2%}")
    axes.axhline(0, color=GREY, linewidth=0.8)
    axes.set_xlabel("weight (the marks below are the values that remain)")
    axes.set_ylabel("how many")
    return drawn


@styled()
def errors(groups: Sequence[str], found: Mapping[str, Sequence[float]]) -> Figure:
    """Relative error of rounding by what shares a scale, a line for each matrix."""
    drawn, axes = figure(6.8, 3.4)
    for (name, line), colour in zip(found.items(), (BLUE, ORANGE, VERMILION, PURPLE), strict=False):
        axes.plot(range(len(groups)), [100 * value for value in line], color=colour, label=name, **MEASURED)
    axes.set_xticks(range(len(groups)), groups)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("columns that share a scale")
    axes.set_ylabel("error of the weights\n(% of their size)")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return drawn


@styled()
def crossing(own: str, seconds: Mapping[str, Mapping[int, float]], title: str) -> Figure:
    """How many times as fast as the model's own precision a decode step is, over the rows in the batch."""
    drawn, axes = figure(7.2, 3.6)
    sizes = sorted(seconds[own])
    for name, line in seconds.items():
        if name == own:
            continue
        gains = [seconds[own][size] / line[size] for size in sizes]
        axes.plot(sizes, gains, color=PRECISION.get(name, BLACK), label=name, **MEASURED)
    axes.axhline(1, **FLOOR)
    axes.annotate(own, (sizes[0], 1), xytext=(0, 4), textcoords="offset points", fontsize=9, color="#505050")
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.set_xlabel("rows in a step")
    axes.set_ylabel(f"decode step, times\nas fast as {own} (×)")
    fastest = max(seconds[own][size] / line[size] for line in seconds.values() for size in sizes)
    axes.set_ylim(0, 1.2 * fastest)
    axes.set_title(title)
    axes.legend(loc="upper right", ncols=2)
    return drawn


@styled()
def sensitivity(
    layers: Sequence[str], kinds: Sequence[str], damage: Mapping[tuple[str, str], float]
) -> Figure:
    """What rounding one matrix alone does to the output: a field for each layer and matrix, darker is worse.

    Args:
        damage: (layer, kind) → KL divergence [nats a token].
    """
    drawn, axes = figure(7.6, 0.9 + 0.42 * len(layers))
    worst = max(damage.values())
    shades = [[damage.get((layer, kind), 0.0) / worst for kind in kinds] for layer in layers]
    axes.imshow(shades, cmap="Oranges", vmin=0, vmax=1.6, aspect="auto")
    for row, layer in enumerate(layers):
        for column, kind in enumerate(kinds):
            if (layer, kind) in damage:
                value = 1e3 * damage[layer, kind]
                axes.text(column, row, f"{value:.2g}", ha="center", va="center", fontsize=9, color=BLACK)
    axes.set_xticks(range(len(kinds)), kinds, fontsize=9)
    axes.set_yticks(range(len(layers)), layers, fontsize=9)
    axes.grid(visible=False)
    axes.set_title("KL divergence when only this matrix is rounded (millinats a token)")
    return drawn


@dataclass(frozen=True)
class Spot:
    """A model somewhere between small and good.

    Args:
        size: weights [B].
        worse: perplexity above the plain model's, as a share; low and high are the ends of its interval.
    """

    name: str
    size: float
    worse: float
    low: float
    high: float


@styled()
def budget(uniform: Sequence[Spot], mixed: Sequence[Spot], names: Sequence[str]) -> Figure:
    """Perplexity lost over size: one format for all, and the same bytes spent where they help most.

    Args:
        names: of the two lines.
    """
    drawn, axes = figure(7.2, 3.6)
    for spots, colour, name, marker in ((uniform, GREY, names[0], "s"), (mixed, ORANGE, names[1], "o")):
        ordered = sorted(spots, key=lambda spot: spot.size)
        sizes = [spot.size / 1e6 for spot in ordered]
        worse = [100 * spot.worse for spot in ordered]
        bars = [
            [100 * (spot.worse - spot.low) for spot in ordered],
            [100 * (spot.high - spot.worse) for spot in ordered],
        ]
        axes.errorbar(
            sizes, worse, yerr=bars, color=colour, marker=marker, markersize=6, label=name, capsize=3
        )
        for x, y, spot in zip(sizes, worse, ordered, strict=True):
            axes.annotate(spot.name, (x, y), xytext=(5, 5), textcoords="offset points", fontsize=8.5)
    axes.axhline(0, color=GREY, linewidth=0.8)
    axes.set_xlabel("stored weights (MB)")
    axes.set_ylabel("perplexity above\nthe plain model's (%)")
    axes.legend(loc="upper right")
    return drawn


@styled()
def bars(found: Mapping[str, tuple[float, float, float]], label: str, *, first: str = "") -> Figure:
    """One bar a name with its interval.

    Args:
        found: name → (value, low, high).
        label: of the axis, with the unit.
        first: a bar to be told apart from the others: what they are compared with.
    """
    drawn, axes = figure(7.4, 0.9 + 0.34 * len(found))
    top = max(high for _, _, high in found.values())
    for line, (name, (value, low, high)) in enumerate(found.items()):
        colour = GREY if name == first else ORANGE
        axes.barh(line, value, color=colour, height=0.66)
        axes.plot([low, high], [line, line], color=BLACK, linewidth=1.4)
        axes.annotate(
            f"{value:.3g}",
            (max(value, high), line),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
        )
    axes.set_xlim(right=1.12 * top)
    axes.set_yticks(range(len(found)), list(found))
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(label)
    return drawn


@styled()
def channels(means: Sequence[float], title: str) -> Figure:
    """The mean size of each channel of a layer's input, in the order of the channels."""
    drawn, axes = figure(7.4, 2.7)
    axes.bar(range(len(means)), means, width=1.0, color=BLUE)
    axes.set_xlabel("channel of the input (a column of the weight)")
    axes.set_ylabel("mean |input|")
    axes.margins(x=0.01)
    axes.set_title(title)
    return drawn


@styled()
def ratios(tried: Sequence[float], found: Mapping[str, Sequence[float]], label: str) -> Figure:
    """Error of a layer's output over the ratio of AWQ, a line for each kind of calibration; its best is ringed."""
    drawn, axes = figure(6.8, 3.2)
    for (name, line), colour in zip(found.items(), (BLUE, ORANGE, VERMILION, PURPLE), strict=False):
        axes.plot(tried, [100 * value for value in line], color=colour, label=name, **MEASURED)
        best = min(range(len(line)), key=line.__getitem__)
        axes.plot(
            tried[best], 100 * line[best], marker="o", markersize=13, markerfacecolor="none", color=colour
        )
    axes.set_ylim(0, 300 * max(line[0] for line in found.values()))  # what is far worse may leave the picture
    axes.set_xlabel("ratio (0: plain rounding)")
    axes.set_ylabel(label)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return drawn
