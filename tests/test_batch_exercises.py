"""The exercises of 03_batch: every failure has words of its own, reached by some wrong answer."""

import random
import runpy
from pathlib import Path

import pytest

from labkit.batch.explore import virtual_engine
from labkit.batch.virtual import CostModel
from labkit.batch.workload import workload
from labkit.course import exercises, texts
from labkit.course.exercise import CheckFailed
from labkit.course.exercises.batch.step import replay_steps, schedule_step
from labkit.course.tables.batch import LAW
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


def test_core_path_fits_into_the_promised_minutes():
    assert sum(exercise.minutes for exercise in EXERCISES if exercise.level == "core") <= 25
    assert {exercise.name for exercise in EXERCISES if exercise.level == "extra"} == {"serving_order"}
    assert len(EXERCISES) >= 6


def test_the_law_gives_what_articles_say():
    law = exercises.find("batch_throughput").reference
    for batch, rate in LAW.items():
        assert law(batch, 15, 400, 256, 0.1) == pytest.approx(rate, abs=0.05)


def test_steps_are_those_of_labkits_scheduler():
    load = workload(list(range(2000)), 20, prompts=(3, 90), outputs=(1, 30), seed=random.randrange(10**6))
    sizes = [(len(one.request.prompt), one.request.max_tokens) for one in load]
    budget = random.choice([32, 64, 200])
    engine = virtual_engine(CostModel(0.01), step_tokens=budget, share=False)
    engine.run([one.request for one in load])
    theirs = [{str(name): tokens for name, _, tokens in step.rows} for step in engine.metrics.steps]
    assert replay_steps(schedule_step, sizes, budget=budget, blocks=4096, block_size=16) == theirs


def test_a_schedule_that_runs_nothing_ends():
    assert replay_steps(lambda *_: [], [(4, 4)], budget=8, blocks=8, block_size=16) == []


def test_order_is_that_of_labkits_scheduler():
    names = [f"r{index}" for index in range(20)]
    waiting = [(name, random.uniform(0, 60), random.randint(-3, 2)) for name in names]
    engine = virtual_engine(CostModel(0.01), ageing=7.0)
    places = {
        name: engine.scheduler.place(at, level, index) for index, (name, at, level) in enumerate(waiting)
    }
    assert exercises.find("serving_order").reference(waiting, 7.0) == sorted(names, key=places.__getitem__)
