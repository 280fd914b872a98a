"""The small course in grading_demo/ as a course folder, for tests of the grader: fixtures."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from grading_helpers import DEMO, NAME

from labkit.course import exercises, texts
from labkit.course.grading.workers import GIB, Workers


@pytest.fixture(scope="module")
def grading_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A course folder that holds the demo's source, with labkit looking there and knowing its exercises."""
    exercises.names()  # collects the course's own before the registry is replaced
    folder = tmp_path_factory.mktemp("home")
    (folder / "solutions").mkdir()
    text = (DEMO / f"{NAME}.py").read_text(encoding="utf-8")
    (folder / "solutions" / f"{NAME}.py").write_text(text, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABKIT_HOME", str(folder))
        patch.setenv("LABKIT_WORK", str(folder / "work"))
        patch.setenv("PYTHONPATH", str(DEMO))  # for the notebooks' kernels
        patch.syspath_prepend(DEMO)
        patch.setattr(exercises, "_registry", dict(exercises._registry))
        patch.setattr(texts, "_folders", list(texts._folders))
        import grading_exercises

        grading_exercises.install()
        yield folder


@pytest.fixture(scope="module")
def workers(grading_home: Path) -> Iterator[Workers]:
    with Workers(seconds=10, memory=GIB // 2, forbidden=[grading_home]) as shared:
        yield shared
