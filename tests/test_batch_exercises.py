"""The exercises of 03_batch: minutes, references against labkit's own, planted cases."""

import random
import runpy
from pathlib import Path

import pytest

from labkit.batch.explore import virtual_engine
from labkit.batch.virtual import CostModel
from labkit.batch.workload import workload
from labkit.course import exercises
from labkit.course.exercise import CheckFailed
from labkit.course.exercises.batch.step import replay_steps, schedule_step
from labkit.course.tables.batch import LAW
from labkit.course.verify import guarded, verify

EXERCISES = exercises.of("03_batch")


def test_core_path_fits_into_the_promised_minutes():
    assert sum(exercise.minutes for exercise in EXERCISES if exercise.level == "core") <= 35
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
    engine = virtual_engine(CostModel(0.01), head_start=7.0)
    places = {
        name: engine.scheduler.place(at, level, index) for index, (name, at, level) in enumerate(waiting)
    }
    assert exercises.find("serving_order").reference(waiting, 7.0) == sorted(names, key=places.__getitem__)


VERDICTS = {
    "batch_throughput/articles": "articles",
    "form_batches/restarts": "restarts",
    "largest_batch/blocks_down": "blocks_down",
    "largest_batch/rounded_up": "rounded_up",
    "largest_batch/share_of_rest": "share_of_rest",
    "padding_share/sorts_input": "changed",
    "schedule_step/blocks_of_piece": "blocks_of_piece",
    "schedule_step/just_done": "just_done",
    "schedule_step/just_done_zero": "just_done",
    "schedule_step/mapping": "mapping",
    "schedule_step/pops_queue": "changed",
    "schedule_step/rounds_down": "blocks_down",
    "schedule_step/running_blocks": "running_blocks",
    "serving_order/no_head_start": "no_head_start",
    "serving_order/sorts_queue": "changed",
}
"""Answers whose fault looks like another one on some inputs, and what they must be told on every seed."""


@pytest.mark.parametrize("answer", VERDICTS)
def test_the_fault_is_named_whatever_the_seed(answer):
    name, fault = answer.split("/")
    path = Path(__file__).parent / "answers" / "03_batch" / name / f"wrong_{fault}.py"
    function = guarded(runpy.run_path(str(path))[name])
    for _ in range(25):
        seed = random.randrange(10**6)
        with pytest.raises(CheckFailed) as caught:
            verify(exercises.find(name), function, seed)
        assert caught.value.key == VERDICTS[answer], f"seed {seed}: {caught.value.text}"
