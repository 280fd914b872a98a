"""Pictures of notebook 01: the stage bar, the gaps between tokens, the roofline, predicted against measured.

All take plain numbers in seconds, bytes and FLOPs, as `labkit.profile` and recorded results give them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from labkit.course.plots.prediction import prediction_heat, prediction_lines
from labkit.course.plots.roofline import roofline
from labkit.course.style import FLOOR, GREY, PREDICTED, STAGE, figure, ink, patch, styled, time_scale
from labkit.timing import Latency, duration

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["prediction_heat", "prediction_lines", "roofline", "stage_bar", "token_gaps"]


@styled()
def stage_bar(bars: Mapping[str, Mapping[str, float]], *, shares: bool = False) -> Figure:
    """Stages of one request or of several, a stacked bar each.

    Args:
        bars: name of the bar → stage → seconds (or shares, which need not sum to 1 beforehand).
        shares: draw each bar as shares of its own total instead of as time.
    """
    names = list(bars)
    drawn, axes = figure(7.5, 1.4 + 0.62 * len(names))
    totals = {name: sum(bars[name].values()) for name in names}
    scale, unit = (1.0, "") if shares else time_scale(max(totals.values()))
    for row, name in enumerate(names):
        left = 0.0
        for stage, seconds in bars[name].items():
            value = 100 * seconds / totals[name] if shares else seconds / scale
            part = seconds / max(totals.values()) if not shares else seconds / totals[name]
            colour = STAGE.get(stage, GREY)
            axes.barh(row, value, left=left, color=colour, edgecolor="white", linewidth=0.8, height=0.66)
            if part >= 0.045:  # a narrower piece has no room for its number
                text = f"{100 * seconds / totals[name]:.0f} %" if shares else f"{value:.3g}"
                axes.text(
                    left + value / 2, row, text, ha="center", va="center", color=ink(colour), fontsize=9
                )
            left += value
        if not shares:
            axes.annotate(
                duration(totals[name]), (left, row), xytext=(5, 0), textcoords="offset points", va="center",
                fontsize=9,
            )  # fmt: skip
    axes.margins(x=0.09 if not shares else 0.01)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("share of end to end (%)" if shares else f"time ({unit})")
    seen = dict.fromkeys(stage for stage in [*STAGE, *(stage for name in names for stage in bars[name])])
    used = [stage for stage in seen if any(bars[name].get(stage) for name in names)]
    handles = [patch(STAGE.get(stage, GREY)) for stage in used]
    drawn.legend(handles, used, loc="outside upper center", ncols=4, fontsize=9, handlelength=1.2)
    return drawn


@styled()
def token_gaps(latency: Latency, *, marks: Mapping[str, float] | None = None) -> Figure:
    """The wait for each token of one request: TTFT first, then every gap, and TPOT as a line.

    Args:
        marks: name → seconds, drawn as horizontal lines ("noticed": 0.2).
    """
    drawn, axes = figure(7.5, 3.4)
    gaps, tpot = latency.itl, latency.tpot
    scale, unit = time_scale(max((latency.ttft, *gaps)))
    axes.bar([1], [latency.ttft / scale], color=STAGE["prefill"], width=0.8, label="TTFT")
    indices = list(range(2, len(gaps) + 2))
    axes.bar(indices, [gap / scale for gap in gaps], color=STAGE["decode"], width=0.8, label="ITL")
    if tpot is not None:
        axes.axhline(tpot / scale, label=f"TPOT {duration(tpot)}", **PREDICTED)
    for name, seconds in (marks or {}).items():
        axes.axhline(seconds / scale, **FLOOR)
        axes.annotate(
            name, (1, seconds / scale), xytext=(0, 3), xycoords=("axes fraction", "data"),
            textcoords="offset points", ha="right", fontsize=9,
        )  # fmt: skip
    logarithmic = tpot is not None and latency.ttft > 12 * tpot  # else the gaps would be dust beside TTFT
    if logarithmic:
        _plain_log(axes)
        axes.set_ylim(bottom=min(gaps) / scale / 2)
    axes.set_xlim(0, len(gaps) + 2)
    axes.set_xlabel("output token (number)")
    axes.set_ylabel(f"wait for the token ({unit}{', logarithmic' if logarithmic else ''})")
    axes.grid(visible=False, axis="x")
    drawn.legend(ncols=3, loc="outside upper center", fontsize=9)
    return drawn


def _plain_log(axes: Axes) -> None:
    """A logarithmic axis whose ticks read 10, 100 instead of powers."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
