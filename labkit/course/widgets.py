"""Pictures to move through: sliders over a measured grid that leave a static picture for readers on paper."""

import base64
import inspect
import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from labkit.course.display import in_notebook
from labkit.errors import LabkitError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDGET_MIME = "application/vnd.jupyter.widget-view+json"
DPI = 110


def show_figure(figure: "Figure", description: str) -> None:
    """Show a figure as a PNG with `description` as its text: what it says, for readers who cannot see it."""
    if not in_notebook():
        print(description)
        return
    from IPython.display import display

    display({"image/png": _encoded(_png(figure)), "text/plain": description}, raw=True)


def explore(draw: Callable[..., "Figure"], description: str, **grid: Sequence[Any]) -> None:
    """One slider for each measured axis, and the picture that `draw` makes at their position.

    Args:
        draw: called with one value of each axis by name; returns a matplotlib Figure.
        description: what the picture shows, for readers who cannot see it.
        grid: for each axis its measured points, `prompt_tokens=[16, 64, 256]`.

    On paper, and where ipywidgets is absent, the picture at the middle of the grid stays.

    Raises:
        LabkitError: when an axis has no points, or `draw` does not take the axes.
    """
    _check_grid(draw, grid)
    middle = {axis: points[len(points) // 2] for axis, points in grid.items()}
    if not in_notebook():
        print(description)
        return
    from IPython.display import display

    bundle = {"image/png": _encoded(_png(draw(**middle))), "text/plain": description}
    widget = _sliders(draw, grid, middle)
    if widget is not None:
        bundle |= {WIDGET_MIME: widget._repr_mimebundle_()[WIDGET_MIME]}
    display(bundle, raw=True)


def _sliders(draw: Callable[..., "Figure"], grid: dict[str, Sequence[Any]], start: dict[str, Any]) -> Any:
    """The live widget, or None without ipywidgets."""
    try:
        import ipywidgets
    except ImportError:
        return None
    seen: dict[tuple[Any, ...], bytes] = {}
    image = ipywidgets.Image(format="png", layout=ipywidgets.Layout(max_width="100%"))
    sliders = {
        axis: ipywidgets.SelectionSlider(
            options=[(_label(point), point) for point in points],
            value=start[axis],
            description=axis.replace("_", " "),
            continuous_update=False,
            style={"description_width": "initial"},
        )
        for axis, points in grid.items()
    }

    def redraw(_: Any = None) -> None:
        values = {axis: slider.value for axis, slider in sliders.items()}
        key = tuple(values.values())
        if key not in seen:
            seen[key] = _png(draw(**values))
        image.value = seen[key]

    for slider in sliders.values():
        slider.observe(redraw, names="value")
    redraw()
    return ipywidgets.VBox([*sliders.values(), image])


def _check_grid(draw: Callable[..., "Figure"], grid: dict[str, Sequence[Any]]) -> None:
    empty = [axis for axis, points in grid.items() if not len(points)]
    if empty or not grid:
        raise LabkitError(f"There is no measured point on {empty[0] if empty else 'any axis'}.", "Measure some first.")
    try:
        inspect.signature(draw).bind(**grid)
    except TypeError as error:
        raise LabkitError(f"The drawing function does not take the axes {', '.join(grid)}: {error}.") from None
    if any(len(set(points)) != len(points) for points in grid.values()):
        raise LabkitError("A measured point appears twice on one axis.", "Give each point once.")


def _label(point: Any) -> str:
    return f"{point:,}" if isinstance(point, int) else f"{point:g}" if isinstance(point, float) else str(point)


def _png(figure: "Figure") -> bytes:
    stream = io.BytesIO()
    # Without the Software tag the bytes do not depend on matplotlib's version number.
    figure.savefig(stream, format="png", dpi=DPI, metadata={"Software": None})
    return stream.getvalue()


def _encoded(png: bytes) -> str:
    return base64.b64encode(png).decode("ascii")
