"""A course of one small notebook in a temporary folder, for tests of the machinery: the fixture `home`."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from labkit.course import checks, exercises, texts

DEMO = Path(__file__).parent / "course_demo"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder; its exercises are known during the test only."""
    exercises.names()  # collects the course's own before the registry is replaced
    monkeypatch.setattr(exercises, "_registry", dict(exercises._registry))
    monkeypatch.setattr(texts, "_folders", list(texts._folders))
    monkeypatch.setattr(checks.check, "_right", {})
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(DEMO), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.delenv("LABKIT_WORK", raising=False)
    monkeypatch.delenv("LABKIT_LANG", raising=False)
    monkeypatch.syspath_prepend(DEMO)
    import demo_exercises

    demo_exercises.install()
    (tmp_path / "solutions").mkdir()
    shutil.copyfile(DEMO / "90_demo.py", tmp_path / "solutions" / "90_demo.py")
    yield tmp_path
    sys.modules.pop("demo_exercises", None)
    texts._read.cache_clear()
