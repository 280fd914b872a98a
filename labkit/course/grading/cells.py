"""The cells of a notebook file, read whatever state it is in, and what their code defines."""

import ast
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat

from labkit.course import texts
from labkit.errors import LabkitError

LIMIT = 64 * 2**20  # bytes of a notebook file
UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)  # what ast.parse raises


@dataclass(eq=False)  # two cells with the same text are still two
class Cell:
    """A cell of a notebook file, as far as grading cares. `role` is "answer", "check", "setup" or ""."""

    kind: str
    source: str
    id: str = ""
    role: str = ""
    exercise: str = ""
    tags: list[str] = field(default_factory=list)
    given: "Cell | None" = None  # the cell of the course's edition that this one stands for


def load(path: Path) -> dict[str, Any]:
    """The file's content in notebook format 4.

    Raises:
        LabkitError: when it is missing, huge, damaged, or no notebook.
    """
    if not path.is_file():
        raise LabkitError(texts.text("grade.no_file", file=path.name))
    if path.stat().st_size > LIMIT:
        raise LabkitError(texts.text("grade.huge", file=path.name, limit=LIMIT // 2**20))
    data = path.read_bytes()
    encoding = json.detect_encoding(data)
    if encoding.startswith(("utf-16", "utf-32")) and "{" in data[:99].decode(encoding, errors="ignore")[:9]:
        raise LabkitError(texts.text("grade.encoding", file=path.name, encoding=encoding[:6].upper()))
    text = data.decode("utf-8-sig", errors="replace")
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


def read_cells(entries: Iterable[Any]) -> list[Cell]:
    """The cells of a file, without what is too damaged to be one."""
    return [cell for entry in entries if (cell := _cell(entry)) is not None]


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
    if not own and "grade_id" in nbgrader:  # an editor dropped what it does not know
        role = "check" if nbgrader.get("grade") else "answer"
        own = {"role": role, "exercise": str(nbgrader["grade_id"]).removeprefix("check-")}
    tags = metadata.get("tags")
    return Cell(
        kind="code" if entry["cell_type"] == "code" else "markdown",
        source="".join(line for line in lines if isinstance(line, str)),
        id=str(entry.get("id", "")),
        role=str(own.get("role", "")),
        exercise=str(own.get("exercise", "")),
        tags=[str(tag) for tag in tags] if isinstance(tags, list) else [],
    )


def statements(source: str) -> list[ast.stmt]:
    """A cell's top-level statements; none when it is no Python."""
    try:
        return ast.parse(without_magics(source)).body
    except UNREADABLE:
        return []


def imports(source: str) -> list[ast.stmt]:
    """A cell's top-level imports, without labkit's; those that it tries are among them."""
    found: list[ast.stmt] = []
    top = statements(source)
    for node in [inner for outer in top for inner in (outer.body if isinstance(outer, ast.Try) else [outer])]:
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        if modules and not any(module.split(".")[0] == "labkit" for module in modules):
            found.append(node)
    return found


def without_magics(source: str) -> str:
    """The cell as plain Python: lines with IPython's % and ! become empty, unless it is Python as it stands."""
    try:
        ast.parse(source)
    except UNREADABLE:
        return re.sub(r"(?m)^[ \t]*[%!].*$", "", source)
    return source


def defines(source: str, name: str) -> bool:
    """Whether a cell, which need not be valid Python, binds `name` at its top level."""
    name = re.escape(name)
    return re.search(rf"(?m)^((async\s+)?def\s+{name}\s*\(|{name}\s*=)", source) is not None
