"""Timelines of kernels and the gaps between them, measured or computed from launches; and the tiles of one kernel."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from labkit.course.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    LIGHT,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    figure,
    ink,
    patch,
    styled,
    time_scale,
)
from labkit.fuse.arithmetic import timeline
from labkit.profile.timeline import Span

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = {
    "matrix product": BLUE,
    "attention": ORANGE,
    "norm": GREEN,
    "copy": SKY,
    "other": PURPLE,
}
_NAMES = (
    ("attention", r"attention|sdpa|flash|fmha|softmax|decode|paged|varlen|attend|combine"),
    (
        "matrix product",
        r"linear|addmm|\bmm\b|aten::mm|bmm|matmul|gemm|gemv|nvjet|cutlass|splitk|cublas|cijk|vector_kernel|tile_kernel",
    ),
    ("norm", r"norm|rsqrt|pow|mean|reduce_kernel"),
    ("copy", r"copy|cat|memcpy|memset|index|gather|aten::to\b|contiguous|clone|embedding"),
)


def kind_of(name: str) -> str:
    """Which of KINDS an operator or a kernel is, by its name."""
    low = name.lower()
    return next((kind for kind, pattern in _NAMES if re.search(pattern, low)), "other")


def one_layer(spans: Sequence[Span], layers: int, seconds: float) -> tuple[Sequence[Span], float, float]:
    """The stretch of a step from one layer's attention to the next's, in its middle: what `kernels` draws.

    Args:
        spans: of the whole step.
        seconds: of the whole step; a share of it serves where no attention is to be seen.
    """
    starts = [span.start for span in spans if kind_of(span.name) == "attention"]
    each = len(starts) // layers
    if layers < 2 or not each:
        return spans, 0.4 * seconds, seconds / layers
    begin, end = (starts[number * each] for number in ((layers - 1) // 2, (layers - 1) // 2 + 1))
    return spans, begin, end - begin


@styled()
def kernels(runs: Mapping[str, tuple[Sequence[Span], float, float]]) -> Figure:
    """A line for each run on one time axis: a bar for each kernel, white where the device has nothing to do.

    Args:
        runs: title → (spans, from, seconds): which stretch of the run to draw.
    """
    longest = max(seconds for _, _, seconds in runs.values())
    scale, unit = time_scale(longest)
    drawn, first = figure(9.0, 0.75 + 0.8 * len(runs))
    first.remove()
    panels = drawn.subplots(len(runs), 1, squeeze=False, sharex=True)[:, 0]
    for axes, (title, (spans, start, seconds)) in zip(panels, runs.items(), strict=True):
        for kind, colour in KINDS.items():
            bars = [
                ((span.start - start) / scale, span.seconds / scale)
                for span in spans
                if kind_of(span.name) == kind and start <= span.start < start + seconds
            ]
            axes.broken_barh(bars, (0, 1), facecolors=colour, edgecolors="white", linewidth=0.3)
        axes.axvline(seconds / scale, color="#505050", linewidth=1)
        axes.set_yticks([])
        axes.set_title(title, fontsize=10)
        axes.grid(visible=False, axis="y")
        axes.spines["left"].set_visible(False)
        axes.set_ylim(0, 1)
    panels[-1].set_xlabel(f"time ({unit})")
    panels[-1].set_xlim(0, 1.01 * longest / scale)
    drawn.legend(
        [patch(colour) for colour in KINDS.values()],
        list(KINDS),
        loc="outside upper right",
        ncols=5,
        fontsize=9,
    )
    return drawn


@styled()
def launches(runs: Mapping[str, tuple[int, float, float]], lanes: tuple[str, str]) -> Figure:
    """Host and device of steps computed from their launches, all on one time axis.

    Args:
        runs: title → (kernels, seconds to launch one, seconds to run one).
    """
    steps = {title: timeline(*numbers) for title, numbers in runs.items()}
    scale, unit = time_scale(max(device[-1][1] for _, device in steps.values()))
    drawn, first = figure(9.0, 0.6 + 0.95 * len(runs))
    first.remove()
    panels = drawn.subplots(len(runs), 1, squeeze=False, sharex=True)[:, 0]
    for axes, (title, (host, device)) in zip(panels, steps.items(), strict=True):
        for height, colour, bars in (
            (0.55, BLUE, [(start, end) for _, start, end in host]),
            (-0.45, ORANGE, device),
        ):
            pieces = [(start / scale, (end - start) / scale) for start, end in bars]
            axes.broken_barh(pieces, (height, 0.9), facecolors=colour, edgecolors="white", linewidth=0.4)
        busy = sum(end - start for start, end in device) / device[-1][1]
        axes.axvline(device[-1][1] / scale, color=LIGHT, linewidth=1)
        axes.set_yticks([1, 0], lanes, fontsize=9)
        axes.set_title(f"{title}: the device works {busy:.0%} of the time", fontsize=10)
        axes.set_ylim(-0.55, 1.55)
        axes.grid(visible=False, axis="y")
    panels[-1].set_xlabel(f"time ({unit})")
    return drawn


@styled()
def tiles(written: Mapping[tuple[int, ...], Sequence[int]], tokens: int, columns: int, tile: int) -> Figure:
    """Which program of a kernel wrote which result.

    Args:
        written: program → places of the results it wrote, counted through the rows.
        tile: columns of one program; what reaches beyond the last column is hatched.
    """
    from matplotlib.patches import Rectangle

    across = -(-columns // tile)
    drawn, axes = figure(7.8, 1.0 + 0.42 * tokens)
    for number, (program, places) in enumerate(written.items()):
        for token in sorted({int(place) // columns for place in places}):
            mine = sorted(int(place) % columns for place in places if int(place) // columns == token)
            colour = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION)[number % 6]
            size = (mine[-1] + 1 - mine[0], 0.84)
            axes.add_patch(Rectangle((mine[0], token - 0.42), *size, facecolor=colour, edgecolor="white"))
            axes.text(
                mine[0] + size[0] / 2, token, ", ".join(map(str, program)), ha="center", va="center", fontsize=9,
                color=ink(colour),
            )  # fmt: skip
    for token in range(tokens if columns % tile else 0):
        rest = across * tile - columns
        axes.add_patch(
            Rectangle((columns, token - 0.42), rest, 0.84, facecolor="none", edgecolor=GREY, hatch="///")
        )
    axes.axvline(columns, color=BLACK, linewidth=1.2)
    axes.annotate(
        "end of the row", (columns, -0.6), xytext=(-4, 2), textcoords="offset points", ha="right", fontsize=9
    )
    axes.set_xlim(0, across * tile)
    axes.set_ylim(tokens - 0.4, -1.0)
    axes.set_yticks(range(tokens))
    axes.set_xticks([*range(0, columns, tile), columns])
    axes.set_xlabel("column of the result; in each box: the program that wrote it; hatched: masked")
    axes.set_ylabel("row")
    axes.grid(visible=False)
    return drawn
