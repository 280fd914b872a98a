"""Pictures to move through: sliders over a measured grid that leave a static picture for readers on paper."""

import base64
import inspect
import io
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from PIL import Image

from labkit.course import texts
from labkit.course.display import in_notebook
from labkit.errors import LabkitError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDGET_MIME = "application/vnd.jupyter.widget-view+json"
DPI = 110
SHADES = 128
"""Colours of a picture: more than its lines, bands and the edges of its letters have."""


def show_figure(figure: "Figure", description: str) -> None:
    """Show a figure as a PNG with `description` as its text: what it says, for readers who cannot see it."""
    if not in_notebook():
        print(description)
        return
    from IPython.display import display

    display({"image/png": _encoded(_png(figure)), "text/plain": description}, raw=True)


def explore(
    draw: Callable[..., "Figure"],
    description: str,
    *,
    start: Mapping[str, Any] | None = None,
    **grid: Sequence[Any],
) -> None:
    """One slider for each measured axis, and below them the picture that `draw` makes at their position.

    The picture is a plain PNG output which the sliders replace, so it stays where there are no sliders: on paper,
    in an exported page, and where ipywidgets is absent. It starts at the middle of the grid, unless `start` says
    otherwise: a story starts at its beginning.

    Args:
        draw: called with one value of each axis by name; returns a matplotlib Figure.
        description: what the picture shows, for readers who cannot see it.
        start: axis → the measured point to start at, `{"prompt": 16}`; the middle for axes it leaves out.
        grid: for each axis its measured points, `prompt=[16, 64, 256]`; the catalogue's `[words]` may name the axis.

    Raises:
        LabkitError: when an axis has no points, `draw` does not take the axes, or `start` is not on the grid.
    """
    _check_grid(draw, grid)
    first = {axis: points[len(points) // 2] for axis, points in grid.items()} | dict(start or {})
    if any(axis not in grid or point not in grid[axis] for axis, point in first.items()):
        raise LabkitError(f"The start {start} is not on the grid.", "Give measured points of its axes.")
    if not in_notebook():
        print(description)
        return
    from IPython.display import display, update_display

    seen: dict[tuple[Any, ...], str] = {}

    def bundle(**values: Any) -> dict[str, str]:
        key = tuple(values.values())
        if key not in seen:
            seen[key] = _encoded(_png(draw(**values)))
        return {"image/png": seen[key], "text/plain": description}

    shown = uuid.uuid4().hex
    sliders = _sliders(
        grid, first, lambda values: update_display(bundle(**values), raw=True, display_id=shown)
    )
    if sliders is not None:
        display(sliders)
    display(bundle(**first), raw=True, display_id=shown)


def _sliders(
    grid: dict[str, Sequence[Any]], start: dict[str, Any], moved: Callable[[dict[str, Any]], None]
) -> Any:
    """The sliders, calling `moved` with all their values; None without ipywidgets."""
    try:
        import ipywidgets
    except ImportError:
        return None
    names = texts.words("common")
    sliders = {
        axis: ipywidgets.SelectionSlider(
            options=[(_label(point), point) for point in points],
            value=start[axis],
            description=names.get(axis, axis.replace("_", " ")),
            continuous_update=False,
            style={"description_width": "9em"},
            layout={"width": "32em"},
        )
        for axis, points in grid.items()
    }
    for slider in sliders.values():
        slider.observe(lambda _: moved({axis: one.value for axis, one in sliders.items()}), names="value")
    return ipywidgets.VBox(list(sliders.values()))


def _check_grid(draw: Callable[..., "Figure"], grid: dict[str, Sequence[Any]]) -> None:
    empty = [axis for axis, points in grid.items() if not len(points)]
    if empty or not grid:
        where = empty[0] if empty else "any axis"
        raise LabkitError(f"There is no measured point on {where}.", "Measure some first.")
    try:
        inspect.signature(draw).bind(**grid)
    except TypeError as error:
        axes = ", ".join(grid)
        raise LabkitError(f"The drawing function does not take the axes {axes}: {error}.") from None
    if any(len(set(points)) != len(points) for points in grid.values()):
        raise LabkitError("A measured point appears twice on one axis.", "Give each point once.")


def _label(point: Any) -> str:
    if isinstance(point, float):
        return f"{point:g}"
    return f"{point:,}" if isinstance(point, int) else str(point)


def _png(figure: "Figure") -> bytes:
    stream = io.BytesIO()
    # Without the Software tag the bytes do not depend on matplotlib's version number.
    figure.savefig(stream, format="png", dpi=DPI, metadata={"Software": None})
    small = io.BytesIO()  # a plot has few colours: with a palette it takes a third of the bytes
    with Image.open(stream) as image:
        image.convert("RGB").quantize(SHADES, dither=Image.Dither.NONE).save(
            small, format="PNG", optimize=True
        )
    return small.getvalue()


def _encoded(png: bytes) -> str:
    return base64.b64encode(png).decode("ascii")
