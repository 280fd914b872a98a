"""The exercises of 01_profile: minutes, references against labkit's own, planted cases."""

import random

import pytest

from labkit import timing
from labkit.course import exercises
from labkit.course.exercises.profile.planted import FAULTS, planted_timeline

EXERCISES = exercises.of("01_profile")


def test_core_path_fits_into_the_promised_minutes():
    assert sum(exercise.minutes for exercise in EXERCISES if exercise.level == "core") <= 25
    assert {exercise.name for exercise in EXERCISES if exercise.level == "extra"} == {
        "find_bottleneck",
        "stage_budget",
        "idle_share",
        "step_cost",
    }
    assert len(EXERCISES) >= 7


def test_labkits_own_answers_are_what_labkit_computes():
    own = {exercise.name: exercise.reference for exercise in EXERCISES}
    assert own["tokens_within"](0.040, 0.005, 0.200) == timing.tokens_within(0.040, 0.005, 0.200) == 33
    assert own["ttft_share"] is timing.ttft_share
    terms = own["latency_terms"](1.0, [1.5])
    assert terms == {"ttft": 0.5, "tpot": timing.Latency(1.0, (1.5,)).tpot, "itl": [], "e2e": 0.5}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_timelines_are_timelines(fault):
    host, device = planted_timeline(fault, random.Random())
    assert host[0][1] == 0.0
    assert all(here[2] == pytest.approx(there[1]) for here, there in zip(host, host[1:], strict=False))
    assert all(start < end for start, end in device)
    assert all(here[1] < there[0] for here, there in zip(device, device[1:], strict=False))
    idle = 1 - sum(end - start for start, end in device) / device[-1][1]
    assert idle < 0.05 if fault == "device" else idle > 0.2
