"""The roofline of a device with a model's phases on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from labkit.course.style import BLACK, FLOOR, GREY, STAGE, figure, patch, styled
from labkit.profile.datasheet import Ceilings
from labkit.profile.formulas import attainable
from labkit.profile.roofline import RooflinePoint

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PHASE = {"prefill": STAGE["prefill"], "decode": STAGE["decode"]}


@styled()
def roofline(points: Sequence[RooflinePoint], ceilings: Ceilings) -> Figure:
    """The two ceilings, with a model's phases on them: hollow where the roof allows, filled where measured."""
    drawn, axes = figure(7.5, 4.4)
    lowest = min([*(point.intensity for point in points), ceilings.ridge / 30]) / 8
    highest = max([*(point.intensity for point in points), ceilings.ridge * 6]) * 5
    corners = [lowest, ceilings.ridge, highest]
    roof = [attainable(x, ceilings.flops, ceilings.bandwidth) / 1e12 for x in corners]
    axes.plot(corners, roof, color=BLACK, linewidth=2)
    axes.axvline(ceilings.ridge, **{**FLOOR, "linewidth": 1.2})
    axes.set_xscale("log")
    axes.set_yscale("log")
    rates = [rate for point in points for rate in (point.attainable, point.measured) if rate]
    axes.set_ylim(min([*rates, roof[0] * 1e12]) / 4e12, ceilings.flops / 1e12 * 3)
    axes.set_xlim(lowest, highest)
    axes.annotate(
        f"ridge {ceilings.ridge:.3g} FLOP/B", (ceilings.ridge, 0.02), xycoords=("data", "axes fraction"),
        xytext=(4, 0), textcoords="offset points", fontsize=9, color="#505050",
    )  # fmt: skip
    axes.annotate(
        f"{ceilings.flops / 1e12:.3g} TFLOP/s", (highest, roof[-1]), xytext=(-4, 8),
        textcoords="offset points", ha="right", fontsize=9,
    )  # fmt: skip
    middle = min(point.intensity for point in points) ** 0.5 * ceilings.ridge**0.5
    axes.annotate(
        f"{ceilings.bandwidth / 1e9:,.0f} GB/s", (middle, ceilings.bandwidth * middle / 1e12),
        xytext=(8, -14), textcoords="offset points", fontsize=9,
    )  # fmt: skip
    for point in points:
        _roofline_point(axes, point, on_slope=point.intensity < ceilings.ridge)
    axes.set_xlabel("arithmetic intensity (FLOP/B)")
    axes.set_ylabel("rate (TFLOP/s)")
    handles = [patch(_PHASE[phase]) for phase in _PHASE] + [_dot(filled=False), _dot(filled=True)]
    axes.legend(handles, [*_PHASE, "attainable", "measured"], loc="lower right", fontsize=9)
    return drawn


def _dot(*, filled: bool) -> Any:
    from matplotlib.lines import Line2D

    face = GREY if filled else "none"
    return Line2D([], [], marker="o", linestyle="", color=GREY, markerfacecolor=face, markersize=7)


def _roofline_point(axes: Axes, point: RooflinePoint, *, on_slope: bool) -> None:
    colour = _PHASE[point.phase]
    axes.plot(
        point.intensity, point.attainable / 1e12, "o", color=colour, markerfacecolor="white", markersize=8
    )
    if point.measured is not None:
        ends = [point.attainable / 1e12, point.measured / 1e12]
        axes.plot([point.intensity] * 2, ends, color=colour, linewidth=1, linestyle=":")
        axes.plot(point.intensity, point.measured / 1e12, "o", color=colour, markersize=8)
    # above the slope and below the flat part there is room
    rate = point.attainable if on_slope else min(point.attainable, point.measured or point.attainable)
    axes.annotate(
        point.label, (point.intensity, rate / 1e12), xytext=(-7, 5) if on_slope else (7, -10),
        textcoords="offset points", ha="right" if on_slope else "left", fontsize=8.5,
    )  # fmt: skip
