"""A learner's notebook: read it whatever state it is in, and pair its cells with the course's own edition.

What comes out is a job for each exercise (the answer's cell, and what the learner wrote above it) and a copy to run:
the course's edition, with the learner's cells in it and the check and set-up cells as they were given out.
"""

import ast
import functools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from labkit import paths
from labkit.course import build, exercises, texts
from labkit.course.grading.session import Job
from labkit.errors import LabkitError

LIMIT = 64 * 2**20  # bytes of a notebook file
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
DEFINES = FUNCTIONS | ast.Import | ast.ImportFrom | ast.Assign | ast.AnnAssign


@dataclass
class Cell:
    """A cell of a notebook file, as far as grading cares. `role` is "answer", "check", "setup" or ""."""

    kind: str
    source: str
    id: str = ""
    role: str = ""
    exercise: str = ""
    tags: list[str] = field(default_factory=list)
    given: "Cell | None" = None  # the cell of the course's edition that this one stands for


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
    content = _load(path)
    cells = [cell for entry in content["cells"] if (cell := _cell(entry)) is not None]
    notebook = _identify(content.get("metadata"), cells, path)
    given = _edition(notebook)
    _pair(cells, given)
    order = _merge(cells, given)
    stubs = {cell.exercise: cell.source for cell in given if cell.role == "answer"}
    answers = {cell.exercise: cell for cell in cells if cell.role == "answer"}
    imports = tuple(
        ast.unparse(node) for cell in given if cell.role == "setup" for node in _imports(cell.source)
    )
    jobs = {name: _job(name, cells, answers[name], imports) if name in answers else None for name in stubs}
    untouched = {
        exercise for exercise, cell in answers.items() if cell.source.strip() == stubs[exercise].strip()
    }
    return Submission(
        notebook, jobs, untouched, _notebook(order), [cell for cell in order if cell.kind == "code"]
    )


def _load(path: Path) -> dict[str, Any]:
    """The file's content in notebook format 4."""
    if not path.is_file():
        raise LabkitError(texts.text("grade.no_file", file=path.name))
    if path.stat().st_size > LIMIT:
        raise LabkitError(texts.text("grade.huge", file=path.name, limit=LIMIT // 2**20))
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        key = "grade.conflict" if "<<<<<<<" in text else "grade.no_json"
        raise LabkitError(texts.text(key, file=path.name)) from None
    try:
        if content["nbformat"] != 4:
            content = nbformat.reads(text, as_version=4)
    except Exception:  # JSON of another kind, or a format that nbformat does not know
        content = None
    if not isinstance(content, dict) or not isinstance(content.get("cells"), list):
        raise LabkitError(texts.text("grade.no_notebook", file=path.name))
    return content


def _cell(entry: Any) -> Cell | None:
    """One cell of the file, or None when it is too damaged to be one."""
    if not isinstance(entry, dict) or entry.get("cell_type") not in ("code", "markdown", "raw"):
        return None
    source = entry.get("source", "")
    lines = source if isinstance(source, list) else [source]
    metadata = entry.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    own, nbgrader = (metadata.get(key) for key in ("labkit", "nbgrader"))
    own, nbgrader = (part if isinstance(part, dict) else {} for part in (own, nbgrader))
    if not own and isinstance(
        grade_id := nbgrader.get("grade_id"), str
    ):  # an editor that drops what it does not know
        own = {
            "role": "check" if nbgrader.get("grade") else "answer",
            "exercise": grade_id.removeprefix("check-"),
        }
    tags = metadata.get("tags")
    return Cell(
        kind="code" if entry["cell_type"] == "code" else "markdown",
        source="".join(line for line in lines if isinstance(line, str)),
        id=str(entry.get("id", "")),
        role=str(own.get("role", "")),
        exercise=str(own.get("exercise", "")),
        tags=[str(tag) for tag in tags] if isinstance(tags, list) else [],
    )


@functools.lru_cache(maxsize=16)
def _edition(name: str) -> tuple[Cell, ...]:
    """The cells that the course gave out, straight from the source: notebooks/ may have been edited."""
    pristine = build.pristine(paths.solutions() / f"{name}.py")
    return tuple(cell for entry in pristine.cells if (cell := _cell(entry)) is not None)


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
        marked = [
            other
            for other in same
            if cell.role and (other.role, other.exercise) == (cell.role, cell.exercise)
        ]
        candidates = [other for other in same if other.id == cell.id] + marked
        if cell.role == "answer":
            defining = [other for other in same if _defines(other.source, cell.exercise)]
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
    known = {ast.unparse(node) for node in _imports(cell.given.source)}
    return "\n".join(line for node in _imports(cell.source) if (line := ast.unparse(node)) not in known)


def _job(exercise: str, cells: Sequence[Cell], answer: Cell, imports: tuple[str, ...]) -> Job:
    """What the learner's process runs: of the cells they wrote above the answer, only what these define.

    Other answers are not among them: one that hangs or patches something would take this one with it.
    """
    above: list[str] = []
    for cell in cells:
        if cell is answer:
            break
        written = cell.given is None or cell.source != cell.given.source
        if cell.kind == "code" and cell.role not in ("answer", "check") and written:
            above += [ast.unparse(node) for node in _statements(cell.source) if isinstance(node, DEFINES)]
    return Job(exercise, _without_magics(answer.source), imports, tuple(above))


def _statements(source: str) -> list[ast.stmt]:
    try:
        return ast.parse(_without_magics(source)).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # ast's own, for what it cannot read
        return []


def _imports(source: str) -> list[ast.stmt]:
    """A cell's top-level imports, without labkit's."""
    found: list[ast.stmt] = []
    for node in _statements(source):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        if modules and not any(module.split(".")[0] == "labkit" for module in modules):
            found.append(node)
    return found


def _without_magics(source: str) -> str:
    """The cell as plain Python: lines with IPython's % and ! become empty, unless it is Python as it stands."""
    try:
        ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return re.sub(r"(?m)^[ \t]*[%!].*$", "", source)
    return source


def _defines(source: str, name: str) -> bool:
    return (
        re.search(rf"(?m)^(async\s+)?def\s+{re.escape(name)}\s*\(|^{re.escape(name)}\s*=", source) is not None
    )


def _notebook(cells: Sequence[Cell]) -> NotebookNode:
    """A fresh notebook of these cells: valid, without outputs."""
    made = []
    for number, cell in enumerate(cells):
        make = new_code_cell if cell.kind == "code" else new_markdown_cell
        made.append(
            make(source=cell.source, id=f"cell-{number}", metadata={"tags": cell.tags} if cell.tags else {})
        )
    return new_notebook(cells=made, metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}})
