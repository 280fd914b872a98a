"""The block pool as a picture: which row holds which block, how full it is, and who shares it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from labkit.course.style import BLUE, GREEN, GREY, LIGHT, ORANGE, PURPLE, SKY, VERMILION, figure, ink, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from labkit.cache.tables import BlockTables

COLUMNS = 8
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION)
NAMES = "ABCDEF"
CACHED = "#ffffff"


@dataclass(frozen=True)
class Cell:
    """One block: the rows that hold it, the share that is filled, and whether only its content is kept."""

    rows: tuple[int, ...]
    filled: float
    cached: bool


@dataclass(frozen=True)
class Frame:
    """The pool at one moment."""

    title: str
    cells: tuple[Cell, ...]


def frame(title: str, tables: BlockTables) -> Frame:
    """What the pool looks like now. Rows are numbered from 0; blocks are shown from block 1 on."""
    cells = []
    for block in range(1, tables.pool.total + 1):
        rows, filled = [], 0.0
        for number, row in tables.rows.items():
            if block in row.blocks:
                inside = row.length - row.blocks.index(block) * tables.block_size
                filled = max(filled, min(1.0, max(0, inside) / tables.block_size))
                rows.append(number)
        kept = not rows and tables.pool.kept(block)
        cells.append(Cell(tuple(rows), 1.0 if kept else filled, kept))
    return Frame(title, tuple(cells))


@styled()
def pool(moment: Frame, columns: int = COLUMNS) -> Figure:
    """A box for each block: coloured and lettered by the rows that hold it, coloured as far as it is filled."""
    lines = -(-len(moment.cells) // columns)
    drawn, axes = figure(6.4, 0.9 + 0.55 * lines)
    for index, cell in enumerate(moment.cells):
        _box(axes, index % columns, lines - 1 - index // columns, cell)
    axes.set_xlim(-0.1, columns + 0.1)
    axes.set_ylim(-0.1, lines + 0.1)
    axes.set_axis_off()
    axes.set_title(moment.title)
    return drawn


def _box(axes: Axes, x: float, y: float, cell: Cell) -> None:
    from matplotlib.patches import Rectangle

    size = 0.88
    axes.add_patch(Rectangle((x, y), size, size, facecolor="#f4f4f4", edgecolor=LIGHT))
    if cell.cached:
        axes.add_patch(
            Rectangle((x, y), size, size, facecolor=CACHED, edgecolor=GREY, hatch="///", linewidth=0.8)
        )
        return
    for part, row in enumerate(cell.rows):
        width = size / len(cell.rows)
        colour = COLOURS[row % len(COLOURS)]
        left = x + part * width
        axes.add_patch(Rectangle((left, y), width * cell.filled, size, facecolor=colour))
        faint = cell.filled < 0.55 * len(cell.rows) and cell.filled < 1
        axes.text(
            left + width / 2, y + size / 2, NAMES[row % len(NAMES)], ha="center", va="center", fontsize=9,
            color="#1a1a1a" if faint else ink(colour),
        )  # fmt: skip
    if cell.rows:
        axes.add_patch(Rectangle((x, y), size, size, fill=False, edgecolor="#404040", linewidth=0.9))
