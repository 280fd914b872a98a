"""The ledger's picture: TTFT and TPOT of every rung on a logarithmic axis, with what people feel marked."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from labkit.course import texts
from labkit.course.display import MEASURED, RECORDED
from labkit.course.style import styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from labkit.course.ledger import Rung

FELT_MS, LEFT_MS = 200.0, 1000.0  # when a wait is felt, and when people leave


@styled()
def picture(mine: Sequence["Rung"], theirs: Sequence["Rung"]) -> "Figure":
    """One row a rung, best read downwards: within one ladder each step should move the dots to the left.

    The recorded ladder comes first, the learner's own below it behind a line: two machines, two models.
    """
    from matplotlib.figure import Figure

    rows = [(rung, RECORDED, "s") for rung in theirs] + [(rung, MEASURED, "o") for rung in mine]
    figure = Figure(figsize=(8.6, 1.35 + 0.36 * len(rows)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, field in ((left, "ttft"), (right, "tpot")):
        for height, (rung, colour, marker) in enumerate(rows):
            value = getattr(rung, field)
            if value:
                axes.plot(value * 1e3, height, marker, color=colour, markersize=8)
                before = axes is left and any(0.5 * mark < value * 1e3 < mark for mark in (FELT_MS, LEFT_MS))
                axes.annotate(  # to the left of its dot where a mark's line is close on the right
                    f"{value * 1e3:.3g}", (value * 1e3, height), (-7 if before else 7, 4), size=8,
                    textcoords="offset points", ha="right" if before else "left",
                )  # fmt: skip
        _dress(axes, [getattr(rung, field) for rung, _, _ in rows], texts.text(f"ledger.{field}"))
    for limit, key, side in ((FELT_MS, "felt", "right"), (LEFT_MS, "left", "left")):
        low, high = left.get_xlim()
        if low < limit < high:
            left.axvline(limit, color="#999", linewidth=1, linestyle="--", zorder=0)
            said = f" {texts.text(f'ledger.{key}')} "
            left.text(limit, 1.02, said, transform=left.get_xaxis_transform(), size=7, color="#666", ha=side)
    if mine and theirs:
        for axes in (left, right):
            axes.axhline(len(theirs) - 0.5, color="#999", linewidth=1)
    left.set_yticks(range(len(rows)), [f"{rung.name}\n{rung.model}" for rung, _, _ in rows], size=8)
    left.set_ylim(len(rows) - 0.5, -0.5)
    _legend(figure, mine, theirs)
    return figure


def _dress(axes: Any, values: list[float | None], label: str) -> None:
    """A logarithmic axis around the values, in milliseconds."""
    measured = [value * 1e3 for value in values if value]
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.set_xscale("log")
    if measured:
        axes.set_xlim(min(measured) / 4, max(measured) * 6)
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.tick_params(axis="x", labelsize=8)
    axes.set_xlabel(f"{label} [ms]")
    axes.grid(axis="x", which="major", color="#ddd")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)


def _legend(figure: Any, mine: Sequence["Rung"], theirs: Sequence["Rung"]) -> None:
    from matplotlib.lines import Line2D

    handles = []
    if mine:
        handles.append(
            Line2D([], [], marker="o", linestyle="", color=MEASURED, label=texts.text("badge.measured"))
        )
    if theirs:
        handles.append(Line2D([], [], marker="s", linestyle="", color=RECORDED, label=theirs[0].badge))
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False, fontsize=8)
