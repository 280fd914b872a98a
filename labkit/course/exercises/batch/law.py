"""Exercise: requests per second of a batch whose step has a fixed part, a floor and a part that grows."""

import random
from collections.abc import Callable

from labkit.course.exercise import Exercise
from labkit.course.exercises.profile.values import judge


def batch_throughput(
    batch: int, fixed_ms: float, floor_units: float, units_per_request: float, ms_per_unit: float
) -> float:
    """Requests per second of batches that run one after the other (labkit's own answer)."""
    step_ms = fixed_ms + max(floor_units, batch * units_per_request) * ms_per_unit
    return batch / (step_ms / 1e3)


def _check_law(fn: Callable, rng: random.Random) -> None:
    batch = rng.randint(3, 9)
    # first where one request alone is more than the floor, so that a wrong choice of the two has a name
    loads = (batch * rng.uniform(1.5, 3.0), rng.uniform(1.5, 2.5), 0.2, 0.7, rng.uniform(8.0, 20.0))
    for load in loads:
        units = rng.uniform(50, 500)
        _judge_law(fn, batch, rng.uniform(3, 40), batch * units / load, units, rng.uniform(0.03, 0.4))
    _judge_law(
        fn, 1, rng.uniform(3, 40), rng.uniform(300, 500), rng.uniform(100, 290), rng.uniform(0.03, 0.4)
    )


def _judge_law(
    fn: Callable, batch: int, fixed: float, floor: float, units: float, ms_per_unit: float
) -> None:
    work = batch * units
    step = fixed + max(floor, work) * ms_per_unit  # milliseconds of a batch
    want = 1e3 * batch / step
    typical = {
        "articles": 1e3 * batch / (15 + max(400, 256 * batch) * 0.1),
        "per_batch": 1e3 / step,
        "per_millisecond": batch / step,
        "step_time": step,
        "both": 1e3 * batch / (fixed + (floor + work) * ms_per_unit),
        "no_floor": 1e3 * batch / (fixed + work * ms_per_unit),
        "smaller": 1e3 * batch / (fixed + min(floor, work) * ms_per_unit),
        "one_request": 1e3 * batch / (fixed + max(floor, units) * ms_per_unit),
        "no_fixed": 1e3 * batch / (max(floor, work) * ms_per_unit),
        "fixed_each": 1e3 * batch / (batch * fixed + max(floor, work) * ms_per_unit),
        "floor_each": 1e3 * batch / (fixed + batch * max(floor, units) * ms_per_unit),
        "fixed_in_units": 1e3 * batch / ((fixed + max(floor, work)) * ms_per_unit),
    }
    given = {"batch": batch, "fixed": fixed, "floor": floor, "units": units, "ms": ms_per_unit}
    judge(
        fn(batch, fixed, floor, units, ms_per_unit),
        want,
        "throughput",
        typical,
        step=step,
        work=work,
        **given,
    )


EXERCISES = [
    Exercise(
        name="batch_throughput",
        notebook="03_batch",
        level="core",
        points=1,
        minutes=4,
        check=_check_law,
        reference=batch_throughput,
    )
]
