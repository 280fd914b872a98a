"""Every exercise of the course: every failure has words of its own, reached by some wrong answer."""

import random
import runpy
from pathlib import Path

import pytest

from labkit.course import exercises, texts
from labkit.course.exercise import CheckFailed
from labkit.course.verify import guarded, verify

ANSWERS = Path(__file__).parent / "answers"
EXERCISES = [
    exercise
    for folder in sorted(ANSWERS.iterdir())
    if folder.is_dir()
    for exercise in exercises.of(folder.name)
]
ALWAYS_NAMED = {"02_compress", "04_cache", "05_fuse"}
"""Where an answer named after a failure gets that diagnosis on every input; elsewhere some inputs show two faults."""


def _name(exercise):
    return f"{exercise.notebook}/{exercise.name}"


@pytest.mark.parametrize("exercise", EXERCISES, ids=_name)
def test_every_failure_text_is_reached_and_filled_in(exercise):
    said, failures = {}, texts.exercise(exercise.notebook, exercise.name).failures
    for path in sorted((ANSWERS / exercise.notebook / exercise.name).glob("wrong_*.py")):
        function, named = runpy.run_path(str(path))[exercise.name], path.stem.removeprefix("wrong_")
        for _ in range(10):
            seed = random.randrange(10**6)
            with pytest.raises(CheckFailed) as caught:
                verify(exercise, guarded(function), seed)
            said[caught.value.key] = caught.value.text
            if exercise.notebook in ALWAYS_NAMED and named in failures:
                assert caught.value.key == named, f"{path.name}, seed {seed}: {caught.value.text}"
    for key, words in said.items():
        for field in {
            piece.split("}")[0].split("!")[0].split("[")[0] for piece in failures.get(key, "").split("{")[1:]
        }:
            assert f"{{{field.split(':')[0]}}}" not in words, f"{key}: {field} was not given"
        assert "seed=" in words
    assert not set(failures) - set(said), f"no wrong answer shows {set(failures) - set(said)}"
