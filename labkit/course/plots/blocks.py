"""The block pool as a picture: which row holds which block, how full it is, who shares it, and the block tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from labkit.course import texts
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
    styled,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from labkit.cache.tables import BlockTables

COLUMNS = 8
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION)
NAMES = "ABCDEF"
SIZE, BAR = 0.88, 0.4  # of a box, and of the bar in its lower part
LINE = 0.42  # height of a row's block table


@dataclass(frozen=True)
class Cell:
    """One block: the rows that hold it, the share that is filled, and whether only its content is kept."""

    rows: tuple[int, ...]
    filled: float
    cached: bool


@dataclass(frozen=True)
class RowTable:
    """One row's block table: its blocks in order, of which the first `found` were there before it came."""

    row: int
    blocks: tuple[int, ...]
    found: int


@dataclass(frozen=True)
class Frame:
    """The pool at one moment."""

    title: str
    cells: tuple[Cell, ...]
    tables: tuple[RowTable, ...] = ()


def frame(title: str, tables: BlockTables, found: Mapping[int, int] | None = None) -> Frame:
    """What the pool looks like now. Rows are numbered from 0; blocks are shown from block 1 on.

    Args:
        found: row → how many of its blocks were found when it came.
    """
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
    held = tuple(
        RowTable(number, tuple(row.blocks), (found or {}).get(number, 0))
        for number, row in tables.rows.items()
    )
    return Frame(title, tuple(cells), held)


@styled()
def pool(moment: Frame, columns: int = COLUMNS, most: int = 3) -> Figure:
    """A numbered box for each block: lettered by the rows that hold it, its bar coloured as far as it is filled.

    Args:
        columns: boxes in a line.
        most: block tables to leave room for, so that pictures of one story have one size.
    """
    lines = -(-len(moment.cells) // columns)
    drawn, axes = figure(6.6, 0.8 + 0.6 * lines + 0.28 * most)
    _draw(axes, moment, columns, most)
    return drawn


@styled()
def pools(moments: Sequence[Frame], columns: int = COLUMNS, most: int = 3) -> Figure:
    """Several moments of one story, two beside each other."""
    from matplotlib.figure import Figure

    lines, high = -(-len(moments[0].cells) // columns), -(-len(moments) // 2)
    drawn = Figure(figsize=(10.0, high * (0.6 + 0.45 * lines + 0.22 * most)), layout="constrained")
    every = drawn.subplots(high, 2, squeeze=False).flat
    for axes, moment in zip(every, moments, strict=False):
        _draw(axes, moment, columns, most, font=7.5)
    for axes in list(every)[len(moments) :]:
        axes.set_axis_off()
    return drawn


def _draw(axes: Axes, moment: Frame, columns: int, most: int, font: float = 9) -> None:
    lines = -(-len(moment.cells) // columns)
    for index, cell in enumerate(moment.cells):
        _box(axes, index % columns, lines - 1 - index // columns, index + 1, cell, font)
    for index, table in enumerate(moment.tables):
        _table(axes, -0.35 - LINE * index, table, font)
    axes.set_xlim(-0.1, columns + 0.1)
    axes.set_ylim(-0.25 - LINE * most, lines + 0.1)
    axes.set_axis_off()
    axes.set_title(moment.title, fontsize=font + 1.5)


def _table(axes: Axes, y: float, table: RowTable, font: float) -> None:
    """A row's letter and its block table, found and computed blocks apart."""
    words = texts.words("04_cache")
    parts = ((table.blocks[: table.found], words["found"]), (table.blocks[table.found :], words["computed"]))
    said = " · ".join(f"{' '.join(map(str, blocks))} {word}" for blocks, word in parts if blocks)
    colour = COLOURS[table.row % len(COLOURS)]
    axes.text(0.05, y, "■", color=colour, fontsize=font + 2, va="center")
    axes.text(0.33, y, f"{NAMES[table.row % len(NAMES)]}:  {said}", fontsize=font, va="center", color=BLACK)


def _box(axes: Axes, x: float, y: float, number: int, cell: Cell, font: float) -> None:
    """Number and letters above, and below a bar that is as long as the block is full; a stripe for each row."""
    from matplotlib.patches import Rectangle

    edge = "#404040" if cell.rows else GREY if cell.cached else LIGHT
    axes.add_patch(
        Rectangle((x, y), SIZE, SIZE, facecolor="#ffffff" if cell.rows else "#f4f4f4", edgecolor=edge)
    )
    axes.text(x + 0.06, y + 0.64, str(number), ha="left", va="center", fontsize=font - 1.5, color="#606060")
    letters = " ".join(NAMES[row % len(NAMES)] for row in cell.rows)
    axes.text(
        x + SIZE - 0.07, y + 0.64, letters, ha="right", va="center", fontsize=font, weight="bold", color=BLACK
    )
    if cell.cached:
        axes.add_patch(
            Rectangle((x, y), SIZE, BAR, facecolor="#ffffff", edgecolor=GREY, hatch="////", linewidth=0.8)
        )
    for part, row in enumerate(reversed(cell.rows)):
        height = BAR / len(cell.rows)
        colour = COLOURS[row % len(COLOURS)]
        axes.add_patch(Rectangle((x, y + part * height), SIZE * cell.filled, height, facecolor=colour))
    if cell.rows:
        axes.add_patch(Rectangle((x, y), SIZE, SIZE, fill=False, edgecolor=edge, linewidth=0.9))
