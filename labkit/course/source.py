"""A notebook's source: solutions/NN_name.py in jupytext's percent format, read and checked.

# %% [markdown]                  prose
# %% role="setup"                imports and the like, one cell, before the first answer
# %% answer="latency_terms"      the function, its body between ### BEGIN SOLUTION and ### END SOLUTION
# %% check="latency_terms"       exactly: check.latency_terms(latency_terms)
# %% tags=["…"]                  other code cells, with or without tags
"""

import ast
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jupytext
from IPython.core.inputtransformer2 import TransformerManager
from nbformat import NotebookNode

from labkit.course import exercises
from labkit.errors import LabkitError

BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
KEYS = {"role", "answer", "check", "tags"}
ROLES = {"setup"}


@dataclass(frozen=True)
class Source:
    """A valid source.

    Attributes:
        notebook: "01_profile".
        digest: sha256 of the text, with line ends as on Linux.
        cells: as jupytext reads them, metadata still in the source's own words.
        exercises: names in order of their answer cells.
    """

    notebook: str
    digest: str
    cells: tuple[NotebookNode, ...]
    exercises: tuple[str, ...]


def read(path: Path) -> Source:
    """The source at `path`, checked as a whole.

    Raises:
        LabkitError: for the first thing that is wrong, with its cell.
    """
    try:
        text = path.read_text(encoding="utf-8").replace("\r\n", "\n")
    except FileNotFoundError:
        raise LabkitError(
            f"There is no notebook source {path.name}.", "Sources are solutions/NN_name.py."
        ) from None
    except UnicodeDecodeError as error:
        raise LabkitError(f"{path.name} is not UTF-8 text: {error}.", "Save it as UTF-8.") from None
    return parse(text, path.stem)


def parse(text: str, notebook: str) -> Source:
    """A source given as text; see `read`."""
    try:
        cells = tuple(jupytext.reads(text, fmt="py:percent").cells)
    except Exception as error:  # jupytext has no common class for what it cannot read
        raise LabkitError(f"{notebook}.py cannot be read as percent format: {error}.") from error
    for cell in cells:  # jupytext notes blank lines in the metadata, to write the text back
        for key in [key for key in cell.metadata if key.startswith("lines_to_")]:
            del cell.metadata[key]
    if not any(cell.source.strip() for cell in cells):
        raise LabkitError(f"{notebook}.py has no cells.", "Begin each cell with a line `# %%`.")
    for number, cell in enumerate(cells, 1):
        _check_cell(cell, _place(notebook, number, cell), notebook)
    _check_order(cells, notebook)
    names = tuple(cell.metadata["answer"] for cell in cells if "answer" in cell.metadata)
    _check_complete(names, notebook)
    return Source(notebook, hashlib.sha256(text.encode()).hexdigest(), cells, names)


def _place(notebook: str, number: int, cell: NotebookNode) -> str:
    first = next((line.strip() for line in cell.source.splitlines() if line.strip()), "")
    return f"{notebook}.py, cell {number} ({first[:48]!r})"


def _check_cell(cell: NotebookNode, place: str, notebook: str) -> None:
    """One cell by itself: its marker, its syntax, what its role asks for."""
    marks = set(cell.metadata) - {"tags"}
    if unknown := sorted(set(cell.metadata) - KEYS):
        raise LabkitError(
            f"{place}: unknown mark {unknown[0]!r}.", f"A cell may have {', '.join(sorted(KEYS))}."
        )
    if cell.cell_type != "code":
        if marks or BEGIN in cell.source:
            raise LabkitError(f"{place}: only a code cell can be set-up, answer or check.")
        return
    if len(marks) > 1:
        raise LabkitError(f"{place}: a cell has one of {', '.join(sorted(marks))}, not several.")
    if "role" in marks and cell.metadata["role"] not in ROLES:
        raise LabkitError(f"{place}: unknown role {cell.metadata['role']!r}.", f"Roles: {', '.join(ROLES)}.")
    tree = _syntax(cell.source, place)
    if "answer" in marks:
        _check_answer(cell, tree, place, notebook)
    elif BEGIN in cell.source or END in cell.source:
        raise LabkitError(
            f"{place}: a solution stands outside an answer cell.", 'Mark the cell answer="NAME".'
        )
    if "check" in marks:
        name = _exercise(cell.metadata["check"], place, notebook)
        if cell.source.strip() != f"check.{name}({name})":
            raise LabkitError(f"{place}: a check cell is one call.", f"Write exactly: check.{name}({name})")


def _check_answer(cell: NotebookNode, tree: ast.Module, place: str, notebook: str) -> None:
    """The function is there and its solution marked: one pair, in order, inside the function."""
    name = _exercise(cell.metadata["answer"], place, notebook)
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    if len(functions) != 1:
        raise LabkitError(f"{place}: an answer cell defines its function once: def {name}(…).")
    if not ast.get_docstring(functions[0]):
        raise LabkitError(
            f"{place}: {name} has no docstring.", "State what goes in and comes out, with units."
        )
    marks = [
        (number, line.strip())
        for number, line in enumerate(cell.source.splitlines(), 1)
        if "SOLUTION" in line
    ]
    if [mark for _, mark in marks] != [BEGIN, END]:
        raise LabkitError(f"{place}: {name} needs one line {BEGIN} and, below it, one line {END}.")
    begin, end = marks[0][0], marks[1][0]
    if end - begin < 2:
        raise LabkitError(f"{place}: the solution of {name} is empty.")
    if not functions[0].lineno < begin <= (functions[0].end_lineno or 0):
        raise LabkitError(f"{place}: the solution's marks belong inside def {name}(…).")


def _check_order(cells: Sequence[NotebookNode], notebook: str) -> None:
    """One set-up cell first; each exercise answered once, then checked once."""
    answered: set[str] = set()
    checked: set[str] = set()
    set_up = False
    for number, cell in enumerate(cells, 1):
        place = _place(notebook, number, cell)
        if "role" in cell.metadata:
            if set_up:
                raise LabkitError(f"{place}: a second set-up cell.", "Put it all into the first one.")
            set_up = True
        if name := cell.metadata.get("answer"):
            if not set_up:
                raise LabkitError(f'{place}: an answer before the set-up cell (# %% role="setup").')
            if name in answered:
                raise LabkitError(f"{place}: a second answer cell for {name}.")
            answered.add(name)
        if name := cell.metadata.get("check"):
            if name not in answered:
                raise LabkitError(f"{place}: {name} is checked before its answer cell.", "Move it below.")
            if name in checked:
                raise LabkitError(f"{place}: a second check cell for {name}.")
            checked.add(name)
    if unchecked := sorted(answered - checked):
        raise LabkitError(
            f"{notebook}.py: {unchecked[0]} has no check cell.", f'Add # %% check="{unchecked[0]}".'
        )


def _check_complete(names: Sequence[str], notebook: str) -> None:
    absent = [exercise.name for exercise in exercises.of(notebook) if exercise.name not in names]
    if absent:
        raise LabkitError(f"{notebook}.py has no answer cell for the exercise {absent[0]}.")


def _exercise(name: object, place: str, notebook: str) -> str:
    """The name of a known exercise that belongs to this notebook."""
    try:
        found = exercises.find(str(name))
    except LabkitError as error:
        raise LabkitError(f"{place}: {error.what}", error.remedy) from None
    if found.notebook != notebook:
        raise LabkitError(f"{place}: the exercise {name} belongs to {found.notebook}.")
    return found.name


def _syntax(source: str, place: str) -> ast.Module:
    """The cell's syntax tree; IPython's magics are allowed."""
    try:
        return ast.parse(TransformerManager().transform_cell(source))
    except (SyntaxError, ValueError) as error:
        raise LabkitError(f"{place}: this is not valid Python: {error}.") from None
