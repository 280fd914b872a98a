"""A learner's notebook: read it whatever state it is in, and pair its cells with the course's own edition.

What comes out is a job for each exercise (the answer's cell, and what the learner wrote above it) and a copy to run:
the course's edition, with the learner's cells in it and the check and set-up cells as they were given out.
"""

import ast
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from labkit import paths
from labkit.course import build, exercises, texts
from labkit.course.grading.cells import Cell, defines, imports, load, read_cells, statements, without_magics
from labkit.course.grading.session import Job
from labkit.errors import LabkitError

FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
DEFINITIONS = FUNCTIONS | ast.Import | ast.ImportFrom | ast.Assign | ast.AnnAssign


@dataclass
class Submission:
    """A learner's notebook, ready to be graded.

    Attributes:
        notebook: "01_profile".
        jobs: for each exercise the job that runs its answer, or None when it has no cell any more.
        untouched: exercises whose answer is still the stub, character for character.
        copy: the notebook to run.
        cells: what each code cell of the copy is, in order.
    """

    notebook: str
    jobs: dict[str, Job | None]
    untouched: set[str]
    copy: NotebookNode
    cells: list[Cell]


def read(path: Path) -> Submission:
    """The submission in a notebook file.

    Raises:
        LabkitError: when there is no such file, it is no notebook, or not one of this course.
    """
    content = load(path)
    cells = read_cells(content["cells"])
    name = _identify(content.get("metadata"), cells, path)
    given = _edition(name)
    _pair(cells, given)
    order = _merge(cells, given)
    stubs = {cell.exercise: cell.source.strip() for cell in given if cell.role == "answer"}
    answers = {cell.exercise: cell for cell in cells if cell.role == "answer"}
    set_up = [node for cell in given if cell.role == "setup" for node in imports(cell.source)]
    lines = tuple(ast.unparse(node) for node in set_up)
    jobs = {each: _job(each, cells, answers[each], lines) if each in answers else None for each in stubs}
    untouched = {each for each, cell in answers.items() if cell.source.strip() == stubs[each]}
    code = [cell for cell in order if cell.kind == "code"]
    return Submission(name, jobs, untouched, _notebook(order), code)


@functools.lru_cache(maxsize=16)
def _edition(name: str) -> tuple[Cell, ...]:
    """The cells that the course gave out, straight from the source: notebooks/ may have been edited."""
    pristine = build.pristine(paths.solutions() / f"{name}.py")
    return tuple(read_cells(pristine.cells))


def _identify(metadata: Any, cells: Sequence[Cell], path: Path) -> str:
    """The notebook's name, from its metadata, or from the exercises it holds."""
    own = metadata.get("labkit") if isinstance(metadata, dict) else None
    known = exercises.notebooks()
    if isinstance(own, dict) and own.get("notebook") in known:
        return str(own["notebook"])
    marks = {cell.exercise for cell in cells} | {cell.id for cell in cells}
    shared = {name: sum(exercise.name in marks for exercise in exercises.of(name)) for name in known}
    best = max(shared, key=lambda name: shared[name], default="")
    if not best or not shared[best]:
        raise LabkitError(texts.text("grade.foreign", file=path.name, notebooks=", ".join(known)))
    return best


def _pair(cells: Sequence[Cell], given: Sequence[Cell]) -> None:
    """Find for each cell of the edition the learner's cell that stands for it; all others become the learner's own.

    By id, or else by the role in its metadata. A cell that was split or pasted leaves several candidates: the one
    that defines the function is the answer. Where none is left, any cell that defines it is.
    """
    for cell in given:
        same = [other for other in cells if other.given is None and other.kind == cell.kind]
        mark = (cell.role, cell.exercise)
        marked = [other for other in same if cell.role and (other.role, other.exercise) == mark]
        candidates = [other for other in same if other.id == cell.id] + marked
        if cell.role == "answer":
            defining = [other for other in same if defines(other.source, cell.exercise)]
            candidates = [other for other in candidates if other in defining] or candidates or defining
        if candidates:
            candidates[0].given = cell
    for other in cells:
        other.role, other.exercise = (other.given.role, other.given.exercise) if other.given else ("", "")


def _merge(cells: Sequence[Cell], given: Sequence[Cell]) -> list[Cell]:
    """The edition in its own order, with the learner's versions of its cells and, after their neighbours, their own."""
    followers: dict[int, list[Cell]] = {}
    anchor = -1
    positions = {id(cell): number for number, cell in enumerate(given)}
    for cell in cells:
        if cell.given is None:
            followers.setdefault(anchor, []).append(cell)
            continue
        anchor = positions[id(cell.given)]
        if cell.role == "setup" and (added := _new_imports(cell)):
            followers.setdefault(anchor, []).insert(0, Cell("code", added))
    theirs = {id(cell.given): cell for cell in cells if cell.given is not None}
    order = list(followers.get(-1, []))
    for number, cell in enumerate(given):
        order.append(cell if cell.role in ("check", "setup") else theirs.get(id(cell), cell))
        order += followers.get(number, [])
    return order


def _new_imports(cell: Cell) -> str:
    """Imports that the learner added to the set-up cell, which itself is put back."""
    assert cell.given is not None
    known = {ast.unparse(node) for node in imports(cell.given.source)}
    return "\n".join(line for node in imports(cell.source) if (line := ast.unparse(node)) not in known)


def _job(exercise: str, cells: Sequence[Cell], answer: Cell, imports: tuple[str, ...]) -> Job:
    """What the learner's process runs: of the cells they wrote, up to the answer's check, only what these define.

    Other answers are not among them: one that hangs or patches something would take this one with it.
    """
    above: list[str] = []
    below: list[str] = []
    found = above
    for cell in cells:
        if cell is answer:
            found = below
        elif found is below and cell.role in ("answer", "check"):
            break
        written = cell.given is None or cell.source != cell.given.source
        if cell.kind == "code" and cell.role not in ("answer", "check") and written:
            found += [ast.unparse(node) for node in statements(cell.source) if isinstance(node, DEFINITIONS)]
    return Job(exercise, without_magics(answer.source), imports, tuple(above), tuple(below))


def _notebook(cells: Sequence[Cell]) -> NotebookNode:
    """A fresh notebook of these cells: valid, without outputs."""
    made = []
    for number, cell in enumerate(cells):
        make = new_code_cell if cell.kind == "code" else new_markdown_cell
        metadata = {"tags": cell.tags} if cell.tags else {}
        made.append(make(source=cell.source, id=f"cell-{number}", metadata=metadata))
    return new_notebook(cells=made, metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}})
