"""Show things in a notebook, with plain text where there is none; the table and the badge that all notebooks share."""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from labkit import results
from labkit.course import texts

MEASURED = "#0a7d4f"
RECORDED = "#5b4a9e"


def in_notebook() -> bool:
    """Whether a Jupyter kernel runs this code."""
    try:
        from IPython import get_ipython
    except ImportError:
        return False
    shell = get_ipython()
    return shell is not None and hasattr(shell, "kernel")


def show(*things: Any) -> None:
    """Display each thing: rich in Jupyter, as text elsewhere."""
    if in_notebook():
        from IPython.display import display

        display(*things)
        return
    for thing in things:
        print(thing)


@dataclass(frozen=True)
class Badge:
    """Where a number comes from: this machine just now, or a recorded run."""

    text: str
    colour: str

    def __str__(self) -> str:
        return f"[{self.text}]"

    def _repr_html_(self) -> str:
        return (
            f'<span style="background:{self.colour};color:#fff;border-radius:9px;padding:1px 8px;'
            f'font-size:85%;white-space:nowrap">{html.escape(self.text)}</span>'
        )


@dataclass(frozen=True)
class Note:
    """One sentence, shown as a paragraph."""

    text: str

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return f'<p style="max-width:46em">{html.escape(self.text)}</p>'


def measured_here() -> Badge:
    """The badge of a figure that this machine has just measured."""
    return Badge(texts.text("badge.measured"), MEASURED)


def recorded(result: dict[str, Any]) -> Badge:
    """The badge of a recorded run, as `labkit.results.load` returns it."""
    return Badge(results.badge(result), RECORDED)


@dataclass(frozen=True)
class Table:
    """A small table: strings and badges in rows; numbers should come formatted with their unit.

    Text in a notebook without HTML lines up in columns too.
    """

    headers: Sequence[str]
    rows: Sequence[Sequence[Any]]
    caption: str = ""

    def __str__(self) -> str:
        cells = [[str(cell) for cell in row] for row in [self.headers, *self.rows]]
        widths = [max(len(row[column]) for row in cells) for column in range(len(self.headers))]
        lines = [_aligned(row, widths) for row in cells]
        lines.insert(1, "  ".join("─" * width for width in widths))
        return "\n".join([self.caption, *lines] if self.caption else lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head = "".join(_cell(cell, column, "th") for column, cell in enumerate(self.headers))
        body = "".join(
            "<tr>" + "".join(_cell(cell, column, "td") for column, cell in enumerate(row)) + "</tr>"
            for row in self.rows
        )
        caption = f'<div style="margin-bottom:3px">{html.escape(self.caption)}</div>' if self.caption else ""
        return f"<div>{caption}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    """The first column to the left, the others to the right, as in the HTML."""
    rest = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
    return "  ".join([row[0].ljust(widths[0]), *rest]).rstrip()


def _cell(cell: Any, column: int, tag: str) -> str:
    inner = cell._repr_html_() if isinstance(cell, Badge) else html.escape(str(cell))
    return f'<{tag} style="text-align:{"right" if column else "left"}">{inner}</{tag}>'
