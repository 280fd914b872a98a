"""Notebooks handed in, made from the small course in grading_demo/."""

import copy
import ctypes
import re
import sys
from pathlib import Path

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell

from labkit.course import edition, source
from labkit.course.grading.files import judge_file
from labkit.course.grading.report import Grade
from labkit.course.grading.workers import Workers

DEMO = Path(__file__).parent / "grading_demo"
NAME = "91_grading"
RIGHT = {
    "spread": "def spread(values):\n    return max(values) - min(values) if values else 0.0",
    "centred": "def centred(rows):\n    return rows - rows.mean(1, keepdim=True)",
    "timed": "def timed(work, clock):\n    start = clock()\n    work()\n    return clock() - start",
}


def given() -> NotebookNode:
    """The learner's edition, untouched."""
    return copy.deepcopy(edition.learners(source.read(DEMO / f"{NAME}.py")))


def solved() -> NotebookNode:
    return copy.deepcopy(edition.full(source.read(DEMO / f"{NAME}.py")))


def answered(**answers: str) -> NotebookNode:
    """The learner's edition with right answers, or those given ("" leaves the stub)."""
    notebook = given()
    for name, text in (RIGHT | answers).items():
        if text:
            find(notebook, name).source = text
    return notebook


def find(notebook: NotebookNode, cell_id: str) -> NotebookNode:
    return next(cell for cell in notebook.cells if cell.id == cell_id)


def insert(notebook: NotebookNode, before: str, text: str) -> NotebookNode:
    """Add a cell of the learner's own above the cell `before`; at the end when that is ""."""
    place = next((n for n, cell in enumerate(notebook.cells) if cell.id == before), len(notebook.cells))
    notebook.cells.insert(place, new_code_cell(text))
    return notebook


def save(notebook: NotebookNode, folder: Path, name: str = "handed-in.ipynb") -> Path:
    import nbformat

    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, path)
    return path


def marks(notebook: NotebookNode, folder: Path, workers: Workers) -> Grade:
    """Grade the exercises alone."""
    return judge_file(save(notebook, folder), workers)[1]


def statuses(grade: Grade) -> dict[str, str]:
    assert not grade.error, grade.error
    return {verdict.exercise.name: verdict.status for verdict in grade.verdicts}


def message(grade: Grade, name: str) -> str:
    text = next(verdict.message for verdict in grade.verdicts if verdict.exercise.name == name)
    return re.sub(r"\s+", " ", text)


def gallery(name: str) -> dict[str, str]:
    """The answers in grading_demo/<name>.txt by their titles; a title stands behind ===."""
    text = (DEMO / f"{name}.txt").read_text(encoding="utf-8").replace("DEMO", str(DEMO))
    parts = [part.partition("\n") for part in text.split("\n=== ")[1:]]
    return {title: answer.strip() + "\n" for title, _, answer in parts}


def landlock_version() -> int:
    """What this kernel's Landlock can do; less than 1 where there is none."""
    return int(ctypes.CDLL(None).syscall(444, None, 0, 1)) if sys.platform == "linux" else 0
