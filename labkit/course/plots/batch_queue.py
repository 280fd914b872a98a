"""The picture of a queue: what each request of a run spent waiting, and what being served."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from labkit.batch.metrics import StepRecord
from labkit.batch.replay import Replay
from labkit.course.plots.batch import pieces
from labkit.course.style import LIGHT, STAGE, figure, patch, styled, time_scale

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@styled()
def queue(run: Replay, steps: Sequence[StepRecord]) -> Figure:
    """A line for each request, in order of arrival: queue from its arrival on, then its prompt and its decoding.

    Args:
        run: what was served.
        steps: the steps of that run.
    """
    found, start = pieces(steps), min(ticket.arrival for ticket in run.tickets)
    scale, unit = time_scale(run.seconds)
    drawn, axes = figure(7.5, 1.2 + 0.13 * len(run.tickets))
    for line, ticket in enumerate(run.tickets):
        parts = found[ticket.number]
        waited = ("queue", ticket.arrival, parts[0][1])
        for kind, begin, end in (waited, *parts):
            axes.broken_barh(
                [((begin - start) / scale, max(0.0, end - begin) / scale)],
                (line - 0.42, 0.84),
                facecolors=STAGE.get(kind, LIGHT),
                edgecolors="white",
                linewidth=0.4,
            )
    axes.set_ylim(len(run.tickets) - 0.4, -0.6)
    axes.set_xlim(left=0)
    axes.set_xlabel(f"time after the first arrival ({unit})")
    axes.set_ylabel("request, in order of arrival")
    axes.grid(visible=False, axis="y")
    handles = [patch(colour) for colour in (LIGHT, STAGE["prefill"], STAGE["decode"])]
    axes.legend(handles, ["queue", "prompt (prefill)", "decode"], fontsize=9, loc="upper right")
    return drawn
