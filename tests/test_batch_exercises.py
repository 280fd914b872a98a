"""The exercises of 03_batch: every failure has words of its own, reached by some wrong answer."""

import random
import runpy
from pathlib import Path

import pytest

from labkit.batch.policy import Batches, Queue
from labkit.batch.virtual import CostModel
from labkit.course import exercises, texts
from labkit.course.exercise import CheckFailed
from labkit.course.exercises.batch.step import replay_steps, schedule_step
from labkit.course.verify import guarded, verify

ANSWERS = Path(__file__).parent / "answers" / "03_batch"
EXERCISES = exercises.of("03_batch")
NAMES = [exercise.name for exercise in EXERCISES]


@pytest.mark.parametrize("exercise", EXERCISES, ids=NAMES)
def test_every_failure_text_is_reached_and_filled_in(exercise):
    said = {}
    for path in sorted((ANSWERS / exercise.name).glob("wrong_*.py")):
        function = runpy.run_path(str(path))[exercise.name]
        for _ in range(10):
            seed = random.randrange(10**6)
            with pytest.raises(CheckFailed) as caught:
                verify(exercise, guarded(function), seed)
            said[caught.value.key] = caught.value.text
    for key, words in said.items():
        template = texts.exercise("03_batch", exercise.name).failures[key]
        for field in {piece.split("}")[0].split("!")[0] for piece in template.split("{")[1:]}:
            assert f"{{{field}}}" not in words, f"{key}: {field} was not given"
        assert "seed=" in words
    unreached = set(texts.exercise("03_batch", exercise.name).failures) - set(said)
    assert not unreached, f"no wrong answer shows {unreached}"
