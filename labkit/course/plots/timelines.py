"""Timelines of host and device: what the host did while the device worked or waited."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from labkit.course.style import (
    BLUE,
    GREEN,
    LIGHT,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    figure,
    patch,
    styled,
    time_scale,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Host = Sequence[tuple[str, float, float]]  # activity, start, end [s]
Device = Sequence[tuple[float, float]]  # busy from, to [s]

ACTIVITY = {
    "tokenize": SKY,
    "launch": BLUE,
    "sample": GREEN,
    "synchronize": LIGHT,
    "stream": PURPLE,
    "detokenize": VERMILION,
}
BUSY = ORANGE
LEAST = 0.003  # of the axis: a shorter event is drawn this wide, or nobody would see it


@styled()
def timelines(
    runs: Mapping[str, tuple[Host, Device]], *, lanes: tuple[str, str] = ("host", "device")
) -> Figure:
    """Two lanes a run, each on its own time axis: the host's activities above, the device's busy intervals below.

    Host events too short to be seen are drawn wider than they are, over their neighbours; the device's are true.

    Args:
        runs: title → (host, device), times in seconds.
        lanes: what the two lanes are called.
    """
    longest = max(device[-1][1] for _, device in runs.values())
    scale, unit = time_scale(longest)
    drawn, first = figure(9.0, 0.5 + 1.15 * len(runs))
    first.remove()
    panels = drawn.subplots(len(runs), 1, squeeze=False)[:, 0]
    for axes, (title, (host, device)) in zip(panels, runs.items(), strict=True):
        _lanes(axes, host, device, scale)
        axes.set_yticks([1, 0], lanes)
        axes.set_title(title, fontsize=10)
        axes.margins(x=0.01)
    panels[-1].set_xlabel(f"time ({unit})")
    seen = [name for name in ACTIVITY if any(name == event[0] for host, _ in runs.values() for event in host)]
    handles = [patch(ACTIVITY[name]) for name in seen] + [patch(BUSY)]
    drawn.legend(
        handles, [*seen, lanes[1]], loc="outside upper center", ncols=7, fontsize=9, handlelength=1.2
    )
    return drawn


def _lanes(axes: Axes, host: Host, device: Device, scale: float) -> None:
    least = LEAST * max(host[-1][2], device[-1][1])
    for short in (False, True):  # the short ones last, on top
        for name, colour in ACTIVITY.items():
            bars = [
                ((start + end - width) / 2 / scale, width / scale)
                for event, start, end in host
                if event == name and (end - start < least) == short
                for width in [max(end - start, least)]
            ]
            axes.broken_barh(bars, (0.6, 0.8), facecolors=colour, snap=False, linewidth=0)
    axes.broken_barh(
        [(start / scale, (end - start) / scale) for start, end in device],
        (-0.4, 0.8),
        facecolors=BUSY,
        snap=False,
        linewidth=0,
    )
    axes.set_ylim(-0.55, 1.55)
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
