"""Built notebooks under nbgrader: they validate, and keep their points from release to feedback."""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from grading_helpers import NAME, RIGHT, answered, find, given, solved
from nbformat import NotebookNode

from labkit import paths
from labkit.course import edition, exercises, source

pytest_plugins = ["grading_home"]

pytestmark = pytest.mark.filterwarnings("ignore:Object of type <Submitted")  # nbgrader's own, of SQLAlchemy


@pytest.fixture(autouse=True)
def activated(monkeypatch: pytest.MonkeyPatch) -> None:
    """nbgrader calls `alembic` by its name, as in an activated environment."""
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)


def course(folder: Path, instructors: NotebookNode, name: str) -> Any:
    """An nbgrader course with one assignment, released."""
    from nbgrader.apps.api import NbGraderAPI
    from traitlets.config import Config

    config = Config()
    config.CourseDirectory.root = str(folder)
    config.CourseDirectory.course_id = "course"
    config.Exchange.root = str(folder / "exchange")
    (folder / "exchange").mkdir()
    (folder / "source" / "week1").mkdir(parents=True)
    nbformat.write(instructors, folder / "source" / "week1" / f"{name}.ipynb")
    api = NbGraderAPI(config=config)
    outcome = api.generate_assignment("week1")
    assert outcome["success"], outcome
    return api


def score(api: Any, folder: Path, name: str, student: str, handed_in: NotebookNode) -> tuple[float, float]:
    """Hand in, autograde, write feedback; the points and how many there are."""
    place = folder / "submitted" / student / "week1"
    place.mkdir(parents=True)
    nbformat.write(handed_in, place / f"{name}.ipynb")
    for step in (api.autograde, api.generate_feedback):
        outcome = step("week1", student)
        assert outcome["success"], outcome
    assert (folder / "feedback" / student / "week1" / f"{name}.html").is_file()
    with api.gradebook as gradebook:
        found = gradebook.find_submission("week1", student)
        return found.score, found.max_score


def released(folder: Path, name: str) -> NotebookNode:
    return nbformat.read(folder / "release" / "week1" / f"{name}.ipynb", as_version=4)


def marked(cell: NotebookNode) -> dict[str, Any]:
    """nbgrader's metadata; without the checksum of a stub, whose words an instructor's settings choose."""
    found = dict(cell.metadata.get("nbgrader", {}))
    if found.get("solution"):
        del found["checksum"]
    return found


def test_round_trip(grading_home: Path, tmp_path: Path) -> None:
    api = course(tmp_path, solved(), NAME)
    release = released(tmp_path, NAME)
    assert [marked(cell) for cell in release.cells] == [marked(cell) for cell in given().cells]
    assert score(api, tmp_path, NAME, "untouched", given()) == (0, 6)
    for name, text in RIGHT.items():
        find(release, name).source = text
    find(release, "check-timed").source = "pass  # a locked cell comes back"
    assert score(api, tmp_path, NAME, "ada", release) == (6, 6)


def test_validate(grading_home: Path, tmp_path: Path) -> None:
    from nbgrader.validator import Validator

    results = {}
    for name, notebook in {"solved": answered(), "given": given()}.items():
        path = tmp_path / f"{name}.ipynb"
        nbformat.write(notebook, path)
        results[name] = Validator().validate(str(path))
    assert results["solved"] == {}
    assert len(results["given"].pop("failed")) == len(RIGHT) and not results["given"]


@pytest.mark.slow
@pytest.mark.parametrize("name", exercises.notebooks())
def test_round_trip_of_the_course(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not (path := paths.solutions() / f"{name}.py").is_file():
        pytest.skip(f"{name} is not one of the course's own")
    monkeypatch.setenv("LABKIT_WORK", str(tmp_path / "work"))
    full, learners = edition.full(source.read(path)), edition.learners(source.read(path))
    possible = sum(exercise.points for exercise in exercises.of(name))
    api = course(tmp_path, full, name)
    assert score(api, tmp_path, name, "untouched", learners) == (0, possible)
    assert score(api, tmp_path, name, "solution", full) == (possible, possible)
    shutil.rmtree(tmp_path / "autograded")
