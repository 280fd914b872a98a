"""The grader on the course's own notebooks: solutions earn everything, untouched and cheating ones nothing."""

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from grading_helpers import gallery
from nbformat import NotebookNode

from labkit import paths
from labkit.course import edition, exercises, source
from labkit.course.grading.files import judge_file
from labkit.course.grading.report import Grade
from labkit.course.grading.workers import Workers

NOTEBOOKS = [path.stem for path in sorted(paths.solutions().glob("[0-9][0-9]_*.py"))]

CHEATS = gallery("cheats_for_all")


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with Workers(seconds=20) as shared:
        yield shared


def both(name: str) -> tuple[NotebookNode, NotebookNode]:
    parsed = source.read(paths.solutions() / f"{name}.py")
    return edition.learners(parsed), edition.full(parsed)


def graded(notebook: NotebookNode, folder: Path, workers: Workers) -> Grade:
    path = folder / "handed-in.ipynb"
    nbformat.write(notebook, path)
    grade = judge_file(path, workers)[1]
    assert not grade.error, grade.error
    return grade


def cell(notebook: NotebookNode, exercise: str) -> NotebookNode:
    own = {"role": "answer", "exercise": exercise}
    return next(c for c in notebook.cells if own.items() <= c.metadata.get("labkit", {}).items())


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_solution_untouched_and_half_done(name: str, tmp_path: Path, workers: Workers) -> None:
    given, solved = both(name)
    names = [exercise.name for exercise in exercises.of(name)]
    full = graded(solved, tmp_path, workers)
    assert {verdict.status for verdict in full.verdicts} <= {"passed", "not verified"} and full.code in (0, 3)
    nothing = graded(given, tmp_path, workers)
    assert {verdict.status for verdict in nothing.verdicts} == {"not attempted"}
    assert (nothing.points, nothing.code) == (0, 1) and len(nothing.verdicts) == len(names)
    done = set(random.sample(names, len(names) // 2))
    for exercise in done:
        cell(given, exercise).source = cell(solved, exercise).source
    half = {verdict.exercise.name: verdict.status for verdict in graded(given, tmp_path, workers).verdicts}
    assert {exercise for exercise, status in half.items() if status != "not attempted"} == done


@pytest.mark.parametrize("cheat", CHEATS)
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_cheats_earn_nothing(name: str, cheat: str, tmp_path: Path, workers: Workers) -> None:
    given, _ = both(name)
    for exercise in exercises.of(name):
        text = CHEATS[cheat].replace("SOLUTION", str(paths.solutions() / f"{name}.py"))
        cell(given, exercise.name).source = text.replace("NAME", exercise.name)
    grade = graded(given, tmp_path, workers)
    assert grade.points == 0
    assert {verdict.status for verdict in grade.verdicts} <= {"failed", "not verified"}
    assert all(verdict.message for verdict in grade.verdicts)


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_command_on_solution_and_pristine(name: str) -> None:
    """As a teacher calls it: both editions as they are in the repository, run from top to bottom."""
    outcomes = []
    for folder in (paths.solutions(), paths.notebooks()):
        command = [sys.executable, "-m", "labkit", "grade", "--json", str(folder / f"{name}.ipynb")]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.stdout, done.stderr
        outcomes.append((done.returncode, json.loads(done.stdout)[0]))
    (code, solved), (other, given) = outcomes
    assert solved["run"]["finished"] and given["run"]["finished"], (solved["run"], given["run"])
    assert code in (0, 3) and (code == 3 or solved["points"] == solved["possible"])
    assert other == 1 and given["points"] == 0
    assert {row["status"] for row in given["exercises"]} == {"not attempted"}
