"""Pictures of notebook 03: who held which slot when, throughput over batch size, waits under a policy, and load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from labkit.batch.metrics import StepRecord
from labkit.course.style import (
    BLUE,
    FLOOR,
    GREEN,
    GREY,
    MEASURED,
    ORANGE,
    PREDICTED,
    PURPLE,
    STAGE,
    figure,
    ink,
    patch,
    styled,
    time_scale,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POLICY = {"one at a time": GREY, "static": ORANGE, "dynamic": PURPLE, "continuous": GREEN}
Piece = tuple[str, float, float]  # kind, start, end [s]


def pieces(steps: Sequence[StepRecord]) -> dict[int, list[Piece]]:
    """What each request ran: its prompt and its decoding, neighbouring steps of one kind joined.

    A pause between steps is joined as well where the request held its slot over it.
    """
    found: dict[int, list[Piece]] = {}
    for step in steps:
        for request, _, tokens in step.rows:
            kind = "prefill" if tokens > 1 else "decode"
            known = found.setdefault(request, [])
            if known and known[-1][0] == kind:
                known[-1] = (kind, known[-1][1], step.end)
            else:
                known.append((kind, step.start, step.end))
    return found


def slots(found: Mapping[int, Sequence[Piece]]) -> dict[int, int]:
    """A slot for each request: the lowest that is free when it begins."""
    free_from: list[float] = []
    chosen: dict[int, int] = {}
    for request in sorted(found, key=lambda one: (found[one][0][1], one)):
        start, end = found[request][0][1], found[request][-1][2]
        slot = next((index for index, free in enumerate(free_from) if free <= start), len(free_from))
        free_from[slot : slot + 1] = [end]
        chosen[request] = slot
    return chosen


@styled()
def gantt(
    runs: Mapping[str, Sequence[StepRecord]], arrivals: Mapping[str, Sequence[float]] | None = None
) -> Figure:
    """A timeline for each scheduler on one time axis: a line for each slot, a bar for each request in it.

    Args:
        runs: name → the steps of that run.
        arrivals: name → when its requests arrived, on the same clock as the steps [s]; time then counts from the
            first of them, so that a wait before the first step is seen. Without, from the first step.
    """
    came = arrivals or {}
    known = {name: pieces(steps) for name, steps in runs.items()}
    lanes = {name: slots(found) for name, found in known.items()}
    heights = [1 + max(lane.values()) for lane in lanes.values()]
    origins = {name: min([steps[0].start, *came.get(name, ())]) for name, steps in runs.items()}
    longest = max(steps[-1].end - origins[name] for name, steps in runs.items())
    scale, unit = time_scale(longest)
    drawn, first = figure(9.0, 1.1 + 0.4 * len(runs) + 0.17 * sum(heights))
    first.remove()
    panels = drawn.subplots(
        len(runs), 1, squeeze=False, sharex=True, height_ratios=[height + 1.2 for height in heights]
    )[:, 0]
    for axes, (name, found) in zip(panels, known.items(), strict=True):
        _bars(axes, found, lanes[name], origins[name], scale, longest)
        axes.set_title(name, fontsize=10)
        axes.set_ylabel(f"{max(lanes[name].values()) + 1} slots", fontsize=9)
        axes.set_yticks([])
        axes.grid(visible=False, axis="y")
        moments = [(moment - origins[name]) / scale for moment in came.get(name, ())]
        axes.plot(moments, [-0.8] * len(moments), color=GREY, linestyle="", marker="v", markersize=4)
    panels[-1].set_xlabel(f"{'time after the first arrival' if came else 'time'} ({unit})")
    panels[-1].set_xlim(0, longest / scale)
    handles, names = [patch(STAGE["prefill"]), patch(STAGE["decode"])], ["prompt (prefill)", "decode"]
    if came:
        handles += panels[0].plot([], [], color=GREY, linestyle="", marker="v", markersize=4)
        names.append("somebody arrives")
    drawn.legend(handles, names, loc="outside upper right", ncols=3, fontsize=9)
    return drawn


def _bars(
    axes: Axes,
    found: Mapping[int, Sequence[Piece]],
    lane: Mapping[int, int],
    origin: float,
    scale: float,
    longest: float,
) -> None:
    for request, parts in found.items():
        for kind, start, end in parts:
            axes.broken_barh(
                [((start - origin) / scale, (end - start) / scale)],
                (lane[request] - 0.42, 0.84),
                facecolors=STAGE[kind],
                edgecolors="white",
                linewidth=0.5,
            )
        kind, start, end = max(parts, key=lambda part: part[2] - part[1])
        if end - start > 0.013 * longest:
            middle = ((start + end) / 2 - origin) / scale
            colour, name = ink(STAGE[kind]), str(request - min(found))  # what ran before is not counted
            axes.text(middle, lane[request], name, ha="center", va="center", fontsize=6.5, color=colour)
    axes.set_ylim(max(lane.values()) + 0.6, -1.2)


@styled()
def batch_curve(curve: Mapping[int, float], law: Mapping[int, float]) -> Figure:
    """Throughput over batch size, and throughput over the time between tokens, of measured decode steps.

    Args:
        curve: batch size → seconds of a decode step.
        law: batch size → throughput by a law, in any unit; drawn relative to its value at the smallest size.
    """
    sizes = sorted(curve)
    rate = {size: size / curve[size] for size in sizes}
    drawn, left = figure(9.0, 3.7)
    left.remove()
    left, right = drawn.subplots(1, 2)
    gain = [rate[size] / rate[sizes[0]] for size in sizes]
    left.plot(sizes, gain, color=GREEN, label="measured", **MEASURED)
    left.plot(sizes, [law[size] / law[sizes[0]] for size in sizes], label="articles' law", **PREDICTED)
    left.plot(sizes, [size / sizes[0] for size in sizes], color=GREY, linewidth=1.0, label="batch is free")
    left.set_xscale("log", base=2)
    left.set_yscale("log", base=2)
    for axis in (left.xaxis, left.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:g}")
    left.set_xlabel("batch (rows)")
    left.set_ylabel(f"throughput (× that of {sizes[0]} row)")
    left.legend(fontsize=9)
    scale, unit = time_scale(max(curve.values()))
    right.plot(
        [curve[size] / scale for size in sizes], [rate[size] for size in sizes], color=GREEN, **MEASURED
    )
    for size in sizes:
        right.annotate(
            f"{size}",
            (curve[size] / scale, rate[size]),
            xytext=(6, -11),
            textcoords="offset points",
            fontsize=9,
        )
    right.set_xlim(0, 1.15 * max(curve.values()) / scale)
    right.set_yscale("log", base=2)
    right.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    right.set_xlabel(f"time between tokens ({unit}); numbers: rows")
    right.set_ylabel("throughput (tokens/s, logarithmic)")
    return drawn


@styled()
def waits(
    chosen: Sequence[float],
    reference: Sequence[float],
    *,
    title: str,
    marks: Mapping[str, float] | None = None,
) -> Figure:
    """Share of requests whose first token came within a time, under a policy and under continuous batching.

    Args:
        chosen, reference: seconds from arrival to first token, one a request.
        title: what the policy is.
        marks: name → seconds, drawn as vertical lines.
    """
    drawn, axes = figure(7.5, 3.6)
    longest = max(*chosen, *reference)
    scale, unit = time_scale(longest)
    for values, style in (
        (chosen, {"color": POLICY["dynamic"], "label": "this batching"}),
        (reference, {**PREDICTED, "color": POLICY["continuous"], "label": "continuous"}),
    ):
        ordered = sorted(values)
        shares = [100 * (index + 1) / len(ordered) for index in range(len(ordered))]
        axes.step([0, *(value / scale for value in ordered)], [0, *shares], where="post", **style)
    for line, (name, seconds) in enumerate((marks or {}).items()):
        axes.axvline(seconds / scale, color=GREY, linewidth=1.0)
        axes.annotate(
            name,
            (seconds / scale, 97 - 7 * line),
            xytext=(3, 0),
            textcoords="offset points",
            fontsize=9,
            color="#404040",
        )
    axes.set_title(title)
    axes.set_xlabel(f"first token after ({unit})")
    axes.set_ylabel("requests (%)")
    axes.set_ylim(0, 102)
    axes.set_xlim(left=0)
    axes.legend(fontsize=9, loc="lower right")
    return drawn


@styled()
def load_curve(curves: Mapping[str, Sequence[tuple[float, float]]], *, limit: float | None = None) -> Figure:
    """The 95th percentile of the first token's wait over the rate of arrivals, a line for each policy.

    Args:
        curves: policy → (arrivals per second, seconds).
        limit: a wait to mark [s].
    """
    drawn, axes = figure(7.5, 3.8)
    markers = dict(zip(POLICY, "sD^o", strict=True))
    for name, points in curves.items():
        colour = POLICY.get(name, BLUE)
        axes.plot(
            [rate for rate, _ in points], [seconds for _, seconds in points],
            color=colour, label=name, marker=markers.get(name, "o"), markersize=5,
        )  # fmt: skip
    if limit is not None:
        axes.axhline(limit, **FLOOR)
        axes.annotate(
            f"people leave: {limit:g} s", (1, limit), xytext=(0, 3), xycoords=("axes fraction", "data"),
            textcoords="offset points", ha="right", fontsize=9,
        )  # fmt: skip
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("arrivals (requests/s)")
    axes.set_ylabel("first token, 95th percentile\n(s, logarithmic)")
    axes.set_xlim(left=0)
    axes.legend(fontsize=9, ncols=len(curves), loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2)
    return drawn
