"""Timelines of kernels: what each does, and the gaps between them; measured, or computed from launch times."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from labkit.course.style import BLUE, GREEN, LIGHT, ORANGE, PURPLE, SKY, figure, patch, styled, time_scale
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
    ("attention", r"attention|sdpa|flash|fmha|softmax|decode|paged|varlen"),
    ("matrix product", r"linear|addmm|\bmm\b|aten::mm|bmm|matmul|gemm|gemv|nvjet|cutlass|splitk|cublas|cijk"),
    ("norm", r"norm|rsqrt|pow|mean|reduce_kernel"),
    ("copy", r"copy|cat|memcpy|memset|index|gather|aten::to\b|contiguous|clone|embedding"),
)


def kind_of(name: str) -> str:
    """Which of KINDS an operator or a kernel is, by its name."""
    low = name.lower()
    return next((kind for kind, pattern in _NAMES if re.search(pattern, low)), "other")


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
