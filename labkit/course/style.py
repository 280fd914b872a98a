"""One look for every figure of the course, from the first on.

Colours are those of Okabe and Ito (2008), told apart with every common kind of colour vision. A stage or a
technique has the same colour in every notebook, and never colour alone: bars carry their names or numbers,
predictions are dashed, floors dotted, measurements solid with markers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import matplotlib
from cycler import cycler

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLACK, GREY, LIGHT = "#1a1a1a", "#8c8c8c", "#d9d9d9"
ORANGE, SKY, GREEN, YELLOW = "#E69F00", "#56B4E9", "#009E73", "#F0E442"
BLUE, VERMILION, PURPLE = "#0072B2", "#D55E00", "#CC79A7"

STAGE = {
    "preprocessing": SKY,
    "compile": YELLOW,
    "prefill": BLUE,
    "decode": ORANGE,
    "sampling": GREEN,
    "postprocessing": PURPLE,
    "remainder": LIGHT,
}
TECHNIQUE = {
    "plain": GREY,
    "compress": ORANGE,
    "batch": GREEN,
    "cache": BLUE,
    "fuse": PURPLE,
    "operate": SKY,
    "frontier": VERMILION,
}
# how a line says what kind of number it shows
MEASURED: dict[str, Any] = {"linestyle": "-", "marker": "o", "markersize": 5}
PREDICTED: dict[str, Any] = {"linestyle": (0, (5, 2.5)), "color": BLACK, "linewidth": 1.5}
FLOOR: dict[str, Any] = {"linestyle": (0, (1, 1.6)), "color": GREY, "linewidth": 1.8}

_SETTINGS: Any = {
    "figure.figsize": (7.0, 3.6),
    "figure.dpi": 110,
    "figure.constrained_layout.use": True,
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.8,
    "xtick.color": "#404040",
    "ytick.color": "#404040",
    "lines.linewidth": 2.0,
    "legend.frameon": False,
    "axes.prop_cycle": cycler(color=[BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION]),
}


@contextmanager
def styled() -> Iterator[None]:
    """The course's look inside a `with` block or, as the decorator `@styled()`, in a function that draws."""
    with matplotlib.rc_context(_SETTINGS):
        yield


def figure(width: float = 7.0, height: float = 3.6) -> tuple[Figure, Axes]:
    """A figure of one plot [inches], outside pyplot: no global state, and it is shown exactly once."""
    from matplotlib.figure import Figure

    made = Figure(figsize=(width, height), layout="constrained", dpi=_SETTINGS["figure.dpi"])
    return made, made.add_subplot()


def ink(background: str) -> str:
    """Black or white, whichever reads better on a colour given as "#rrggbb" (relative luminance, WCAG)."""
    channels = [int(background[index : index + 2], 16) / 255 for index in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.03928 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return BLACK if luminance > 0.18 else "#ffffff"


def time_scale(longest: float) -> tuple[float, str]:
    """The unit in which the longest time is at least 1: (seconds a unit, its name)."""
    return next(((s, u) for s, u in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")) if longest >= s), (1e-9, "ns"))


def patch(colour: str) -> Any:
    """A legend's sample of a filled area."""
    from matplotlib.patches import Patch

    return Patch(facecolor=colour)
