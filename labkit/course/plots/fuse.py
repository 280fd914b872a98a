"""Pictures of notebook 05: kernels and gaps, Amdahl's bound, bytes moved, program tiles, the ladder, roofline moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from labkit.course.plots.fuse_kernels import KINDS, kernels, launches, one_layer, tiles
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
    TECHNIQUE,
    figure,
    ink,
    patch,
    styled,
    time_scale,
)
from labkit.fuse.arithmetic import Traffic, bound, speedup
from labkit.profile.datasheet import Ceilings
from labkit.profile.formulas import attainable
from labkit.timing import duration

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "KINDS",
    "Move",
    "amdahl",
    "attention",
    "kernels",
    "ladder",
    "launches",
    "moved",
    "moves",
    "one_layer",
    "tiles",
]

PARTS = (GREEN, SKY, BLUE, ORANGE)  # of a layer's traffic
LINES: tuple[dict[str, Any], ...] = (
    {"color": BLUE, "linestyle": "-"},
    {"color": PURPLE, "linestyle": (0, (5, 2))},
    {"color": ORANGE, "linestyle": (0, (2, 1.2))},
)


@styled()
def amdahl(shares: Mapping[str, float], most: float = 64.0) -> Figure:
    """Speedup of the whole over the speedup of a part, a line for each part; its bound at the right end."""
    drawn, axes = figure(7.2, 3.6)
    factors = [most ** (step / 40) for step in range(41)]
    ends = sorted(shares.values())
    for (name, share), style in zip(shares.items(), LINES, strict=False):
        lower = share == ends[0] and len(ends) > 1  # the lowest two may lie close together
        label = f"{name}: {share:.0%} of the time"
        axes.plot(factors, [speedup([share], [factor]) for factor in factors], label=label, **style)
        axes.axhline(bound(share), color=style["color"], linewidth=1, linestyle=(0, (1, 1.6)))
        axes.annotate(
            f"{bound(share):.2f} ×",
            (most, bound(share)),
            xytext=(4, -11 if lower else 2),
            textcoords="offset points",
            fontsize=9,
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlim(1, most * 1.35)
    axes.set_ylim(bottom=0.88)
    axes.set_xlabel("this part becomes faster by (×, logarithmic)")
    axes.set_ylabel("the whole becomes faster by\n(×, logarithmic)")
    axes.legend(loc="center left", bbox_to_anchor=(0.0, 0.72), fontsize=9)
    return drawn


@styled()
def moved(traffic: Sequence[Traffic], weights: int, title: str, names: Sequence[str]) -> Figure:
    """Bytes of one layer, unfused above and fused below, stacked by operation; weights are read either way.

    Args:
        names: of the two bars, and of the weights.
    """
    drawn, axes = figure(8.4, 2.7)
    whole = weights + sum(one.unfused for one in traffic)
    scale, unit = next((s, u) for s, u in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B")) if whole >= s)
    for line, sizes in enumerate(([one.unfused for one in traffic], [one.fused for one in traffic])):
        left = 0.0
        for size, colour in zip([weights, *sizes], (LIGHT, *PARTS), strict=True):
            axes.barh(
                line, size / scale, left=left, color=colour, edgecolor="white", linewidth=0.8, height=0.62
            )
            if size >= 0.06 * whole:
                axes.text(
                    left + size / scale / 2, line, f"{size / scale:.3g}", ha="center", va="center", fontsize=9,
                    color=ink(colour),
                )  # fmt: skip
            left += size / scale
        axes.annotate(
            f"{left:.3g}", (left, line), xytext=(5, 0), textcoords="offset points", va="center", fontsize=9
        )
    axes.set_yticks([0, 1], names[:2])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.08 * whole / scale)
    axes.set_xlabel(f"moved between memory and processor ({unit})")
    axes.set_title(title)
    axes.grid(visible=False, axis="y")
    drawn.legend(
        [patch(colour) for colour in (LIGHT, *PARTS)], [names[2], *(one.name for one in traffic)],
        loc="outside lower center", ncols=5, fontsize=8.5, handlelength=1.2, columnspacing=1.0,
    )  # fmt: skip
    return drawn


@styled()
def attention(lengths: Sequence[int], seconds: Mapping[str, Sequence[float]]) -> Figure:
    """Time of attention over a prompt by its length: with scores in memory, and fused. Both axes logarithmic."""
    drawn, axes = figure(6.6, 3.4)
    scale, unit = time_scale(max(max(line) for line in seconds.values()))
    for (name, line), colour in zip(seconds.items(), (GREY, TECHNIQUE["fuse"]), strict=True):
        axes.plot(lengths, [value / scale for value in line], color=colour, label=name, **MEASURED)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(list(lengths))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("tokens of the prompt (logarithmic)")
    axes.set_ylabel(f"attention of one layer\n({unit}, logarithmic)")
    axes.legend(loc="upper left")
    return drawn


@styled()
def ladder(ladders: Mapping[str, tuple[Mapping[str, float], float]]) -> Figure:
    """A panel for each machine: tokens/s of every rung, its share of the memory ceiling, and the ceiling as a line.

    Args:
        ladders: title → (rung → seconds of a decode step of one row, the least seconds that memory allows).
    """
    heights = [len(rungs) for rungs, _ in ladders.values()]
    drawn, first = figure(8.4, 0.55 + 0.9 * len(ladders) + 0.36 * sum(heights))
    first.remove()
    panels = drawn.subplots(len(ladders), 1, squeeze=False, height_ratios=[one + 0.6 for one in heights])[
        :, 0
    ]
    for axes, (title, (rungs, floor)) in zip(panels, ladders.items(), strict=True):
        for line, (_name, seconds) in enumerate(rungs.items()):
            colour = GREY if line == 0 else TECHNIQUE["fuse"]
            axes.barh(line, 1 / seconds, color=colour, height=0.66)
            said = f"{1 / seconds:,.3g} tokens/s · {floor / seconds:.0%} of the ceiling"
            inside = 1 / seconds > 0.55 / floor
            axes.annotate(
                said, (1 / seconds, line), xytext=(-5 if inside else 5, 0), textcoords="offset points",
                va="center", ha="right" if inside else "left", fontsize=9, color=ink(colour) if inside else BLACK,
            )  # fmt: skip
        axes.axvline(1 / floor, **FLOOR)
        axes.set_yticks(range(len(rungs)), list(rungs), fontsize=9)
        axes.set_ylim(len(rungs) - 0.5, -0.5)
        axes.set_xlim(0, 1.04 / floor)
        axes.set_title(f"{title}\ndotted: weights and cache read once, {duration(floor)} a step", fontsize=10)
        axes.grid(visible=False, axis="y")
    panels[-1].set_xlabel("output of one row (tokens/s)")
    return drawn


@dataclass(frozen=True)
class Move:
    """An operation before and after fusion: FLOPs, and the bytes that it moves [B]."""

    name: str
    flops: float
    before: float
    after: float


@styled()
def moves(steps: Sequence[Move], ceilings: Ceilings) -> Figure:
    """Fusion under the roof: fewer bytes for the same FLOPs move an operation right, and up the slope."""
    drawn, axes = figure(7.5, 4.2)
    ends = [step.flops / size for step in steps for size in (step.before, step.after)]
    low, high = min(ends) / 8, max(*ends, ceilings.ridge) * 6
    corners = [low, ceilings.ridge, high]
    roof = [attainable(x, ceilings.flops, ceilings.bandwidth) / 1e12 for x in corners]
    axes.plot(corners, roof, color=BLACK, linewidth=2)
    axes.axvline(ceilings.ridge, **{**FLOOR, "linewidth": 1.2})
    axes.annotate(
        f"ridge {ceilings.ridge:.3g} FLOP/B", (ceilings.ridge, 0.02), xycoords=("data", "axes fraction"),
        xytext=(4, 0), textcoords="offset points", fontsize=9, color="#505050",
    )  # fmt: skip
    for number, step in enumerate(steps):
        colour = PARTS[number % len(PARTS)]
        places = [
            (x, attainable(x, ceilings.flops, ceilings.bandwidth) / 1e12)
            for x in (step.flops / step.before, step.flops / step.after)
        ]
        axes.annotate(
            "", places[1], places[0], arrowprops={"arrowstyle": "-|>", "color": colour, "linewidth": 2}
        )
        axes.plot(*places[0], "o", color=colour, markerfacecolor="white", markersize=8)
        axes.plot(*places[1], "o", color=colour, markersize=8)
        faster = places[1][1] / places[0][1]
        left = number % 2 == 0  # of the slope, so that neighbours do not write over one another
        axes.annotate(
            f"{step.name}: {faster:.2g} ×", places[1 if left else 0], xytext=(-10, 7) if left else (9, -13),
            textcoords="offset points", ha="right" if left else "left", fontsize=9,
        )  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(low, high)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("arithmetic intensity (FLOP/B)")
    axes.set_ylabel("rate that the roof allows (TFLOP/s)")
    return drawn
