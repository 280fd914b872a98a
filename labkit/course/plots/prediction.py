"""Predicted against measured over a grid of prompt and output lengths: the picture under the slider."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from labkit.course.style import (
    BLACK,
    FLOOR,
    MEASURED,
    PREDICTED,
    STAGE,
    figure,
    ink,
    styled,
    time_scale,
)
from labkit.timing import duration

if TYPE_CHECKING:
    from matplotlib.figure import Figure


OTHERS: dict[str, Any] = {"color": "#bdbdbd", "linewidth": 1.2}


@styled()
def prediction_lines(
    cells: Sequence[Mapping[str, Any]],
    prompt: int,
    output: int,
    *,
    predicted: Callable[[int, int], float] | None = None,
) -> Figure:
    """Total latency over output length at one prompt length: measured, predicted, and the floor.

    Args:
        cells: of the measured grid: "prompt", "output" [tokens], "e2e" and "floor" [s].
        prompt: the prompt length to bring forward; the others stay in the background.
        output: the output length to mark.
        predicted: (prompt, output) → seconds, drawn dashed.
    """
    drawn, axes = figure(7.5, 3.8)
    rows = {size: sorted((c for c in cells if c["prompt"] == size), key=lambda c: c["output"]) for size in
            sorted({cell["prompt"] for cell in cells})}  # fmt: skip
    scale, unit = time_scale(max(cell["e2e"] for cell in cells))
    others: str | None = "other prompts"
    for size, row in rows.items():
        if size != prompt:
            axes.plot([c["output"] for c in row], [c["e2e"] / scale for c in row], label=others, **OTHERS)
            others = None  # one entry in the legend stands for all
    row = rows[prompt]
    outputs = [cell["output"] for cell in row]
    axes.plot(outputs, [c["e2e"] / scale for c in row], color=STAGE["decode"], label="measured", **MEASURED)
    if predicted is not None:
        line = range(min(outputs), max(outputs) + 1)
        axes.plot(line, [predicted(prompt, n) / scale for n in line], label="predicted", **PREDICTED)
    axes.plot(outputs, [c["floor"] / scale for c in row], label="floor", **FLOOR)
    for cell in row:
        if cell["output"] == output:
            axes.plot(
                [output], [cell["e2e"] / scale], "o", markersize=11, markerfacecolor="none", color=BLACK
            )
            axes.annotate(
                duration(cell["e2e"]), (output, cell["e2e"] / scale), xytext=(-8, 8),
                textcoords="offset points", ha="right", fontsize=9,
            )  # fmt: skip
    axes.set_ylim(bottom=0)
    axes.set_xlabel("output length (tokens)")
    axes.set_ylabel(f"end to end ({unit})")
    axes.set_title(f"prompt {prompt} tokens")
    axes.legend(loc="upper left")
    return drawn


@styled()
def prediction_heat(cells: Sequence[Mapping[str, Any]]) -> Figure:
    """Measured ÷ floor over the whole grid: 1 would be a machine without waste."""
    prompts = sorted({cell["prompt"] for cell in cells})
    outputs = sorted({cell["output"] for cell in cells})
    ratio = {(cell["prompt"], cell["output"]): cell["e2e"] / cell["floor"] for cell in cells}
    table = [[ratio.get((prompt, output), float("nan")) for output in outputs] for prompt in prompts]
    drawn, axes = figure(6.2, 1.4 + 0.55 * len(prompts))
    image = axes.imshow(table, cmap="cividis_r", aspect="auto", vmin=1, origin="lower")
    for y, line in enumerate(table):
        for x, value in enumerate(line):
            if value == value:
                red, green, blue, _ = image.cmap(image.norm(value), bytes=True)
                axes.text(
                    x, y, f"{value:.3g}×", ha="center", va="center", fontsize=9,
                    color=ink(f"#{red:02x}{green:02x}{blue:02x}"),
                )  # fmt: skip
    axes.set_xticks(range(len(outputs)), [str(output) for output in outputs])
    axes.set_yticks(range(len(prompts)), [str(prompt) for prompt in prompts])
    axes.grid(visible=False)
    axes.set_xlabel("output length (tokens)")
    axes.set_ylabel("prompt length (tokens)")
    drawn.colorbar(image, ax=axes, label="measured ÷ floor (ratio)")
    return drawn
