"""Pictures of notebook 04: a step's cost by length, fragmentation, hit rates, TTFT over a shared prefix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from labkit.course.plots.blocks import Frame, frame, pool, pools
from labkit.course.style import (
    BLACK,
    FLOOR,
    MEASURED,
    TECHNIQUE,
    VERMILION,
    figure,
    styled,
    time_scale,
)
from labkit.timing import duration

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Frame", "fragmentation", "frame", "hit_rates", "pool", "pools", "prefix_lines", "step_lines"]

STYLES: tuple[dict[str, Any], ...] = (
    {"color": TECHNIQUE["plain"], "marker": "s"},
    {"color": VERMILION, "marker": "^"},
    {"color": TECHNIQUE["cache"], "marker": "o"},
)


@styled()
def step_lines(lengths: Sequence[int], seconds: Mapping[str, Sequence[float]]) -> Figure:
    """Time of one decode step over the tokens before it, a line for each cache; both axes logarithmic."""
    drawn, axes = figure(6.6, 3.6)
    scale, unit = time_scale(max(max(line) for line in seconds.values()))
    for (name, line), style in zip(seconds.items(), STYLES, strict=True):
        axes.plot(
            lengths, [value / scale for value in line], label=name, linestyle="-", markersize=6, **style
        )
    _powers(axes, lengths)
    axes.set_yscale("log")
    _plain(axes.yaxis)
    axes.set_xlabel("tokens before it (logarithmic)")
    axes.set_ylabel(f"one step ({unit}, logarithmic)")
    axes.legend(loc="upper left")
    return drawn


@styled()
def fragmentation(sizes: Sequence[int], paged: Sequence[float], contiguous: float) -> Figure:
    """Share of the reserved memory that holds no token, over the block size; contiguous as a line across."""
    drawn, axes = figure(6.6, 3.4)
    axes.axhline(100 * contiguous, color=VERMILION, linewidth=2, label="contiguous")
    axes.plot(sizes, [100 * share for share in paged], color=TECHNIQUE["cache"], label="paged", **MEASURED)
    _powers(axes, sizes)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("block size (tokens, logarithmic)")
    axes.set_ylabel("reserved and empty (%)")
    axes.legend(loc="center left")
    return drawn


@styled()
def hit_rates(
    counts: Sequence[int], rates: Mapping[str, Sequence[float]], alone: Sequence[float], name_alone: str
) -> Figure:
    """Share of prompt tokens found in the cache over the number of conversations, a line for each pool.

    `alone` is what the common beginning by itself would give, dotted.
    """
    drawn, axes = figure(6.6, 3.4)
    for (name, line), style in zip(rates.items(), reversed(STYLES), strict=False):
        axes.plot(counts, [100 * rate for rate in line], label=name, linestyle="-", markersize=6, **style)
    axes.plot(counts, [100 * rate for rate in alone], label=name_alone, **FLOOR)
    axes.set_xticks(list(counts))
    axes.set_ylim(0, 100)
    axes.set_xlabel("conversations taking turns")
    axes.set_ylabel("prompt tokens found (%)")
    axes.legend(loc="lower left")
    return drawn


@styled()
def prefix_lines(cells: Sequence[Mapping[str, Any]], shared: int, own: int) -> Figure:
    """TTFT over the length of the shared prefix: computed again, and found.

    Args:
        cells: of the measured grid: "shared", "own" [tokens], "cold", "warm" [s].
        shared: the prefix to mark.
        own: tokens behind the prefix, the same along the line.
    """
    drawn, axes = figure(6.8, 3.6)
    row = sorted((cell for cell in cells if cell["own"] == own), key=lambda cell: cell["shared"])
    scale, unit = time_scale(max(cell["cold"] for cell in cells))
    lengths = [cell["shared"] for cell in row]
    for kind, name, style in (("cold", "computed", STYLES[0]), ("warm", "found in the cache", STYLES[2])):
        line = [cell[kind] / scale for cell in row]
        axes.plot(lengths, line, label=name, linestyle="-", markersize=6, **style)
    here = next(cell for cell in row if cell["shared"] == shared)
    axes.axvline(shared, **{**FLOOR, "linewidth": 1.2})
    for kind in ("cold", "warm"):
        axes.plot([shared], [here[kind] / scale], "o", markersize=12, markerfacecolor="none", color=BLACK)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("shared prefix (tokens)")
    axes.set_ylabel(f"TTFT ({unit})")
    saved = here["cold"] - here["warm"]
    said = f"{duration(abs(saved))} {'saved' if saved >= 0 else 'lost'}"
    axes.set_title(f"prefix {shared} + {own} of its own: {said}", color=BLACK)
    axes.legend(loc="upper left")
    return drawn


def _powers(axes: Axes, points: Sequence[int]) -> None:
    """A logarithmic x axis that names its measured points."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(points), [f"{point:,}" for point in points])
    axes.minorticks_off()


def _plain(axis: Any) -> None:
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())
