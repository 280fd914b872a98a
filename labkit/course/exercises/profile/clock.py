"""Exercise: time a device that works asynchronously."""

import random
import statistics
from collections.abc import Callable
from typing import Any

from labkit.course.exercise import Exercise, expect
from labkit.course.exercises.profile.device import SimulatedDevice
from labkit.course.exercises.profile.values import close, number

# Clock reads, the launch and the wait cost about 10 µs of host time; 2 ms of work drowns them.
TOLERANCE = 0.01


def time_async(
    launch: Callable[[], None],
    synchronize: Callable[[], None],
    now: Callable[[], float],
    warmup: int,
    repeats: int,
) -> float:
    """Median seconds of one launch on an asynchronous device (labkit's own answer)."""
    for _ in range(warmup):
        launch()
    seconds = []
    for _ in range(repeats):
        synchronize()
        start = now()
        launch()
        synchronize()
        seconds.append(now() - start)
    return statistics.median(seconds)


def _run(fn: Callable, device: SimulatedDevice, warmup: int, repeats: int) -> Any:
    got = fn(device.launch, device.synchronize, device.now, warmup, repeats)
    expect(number(got) is not None, "form", got=got)
    expect(device.read > 0, "own_clock", got=got)
    expect(device.launched > 0, "no_launch", got=got)
    return got


def _check(fn: Callable, rng: random.Random) -> None:
    _check_end(fn, rng)
    _check_warmup(fn, rng)
    _check_start(fn, rng)
    _check_median(fn, rng)


def _check_end(fn: Callable, rng: random.Random) -> None:
    """A steady, idle device: whoever does not wait for the work measures the launch alone."""
    want = rng.uniform(2e-3, 9e-3)
    repeats = rng.randint(4, 8)
    got = _run(fn, SimulatedDevice([want]), 2, repeats)
    given: dict[str, Any] = {"want_ms": f"{want * 1e3:.3f}", "got_ms": f"{float(got) * 1e3:.4f}"}
    given |= {"warmup": 2, "repeats": repeats}
    expect(float(got) > want / 20, "no_end", **given)
    expect(not close(got, want * 1e3, TOLERANCE), "milliseconds", **given)
    expect(not close(got, want * repeats, TOLERANCE), "sum", **given)
    expect(close(got, want, TOLERANCE), "steady", **given)


def _check_warmup(fn: Callable, rng: random.Random) -> None:
    """The first launches are ten times slower, and there are more of them than repeats."""
    want, warmup, repeats = rng.uniform(2e-3, 5e-3), rng.randint(7, 9), rng.randint(3, 5)
    device = SimulatedDevice([want * 10] * warmup + [want])
    got = _run(fn, device, warmup, repeats)
    given = {
        "want_ms": f"{want * 1e3:.3f}",
        "got_ms": f"{float(got) * 1e3:.3f}",
        "warmup": warmup,
        "repeats": repeats,
    }
    expect(device.launched >= warmup + repeats, "too_few", launched=device.launched, **given)
    expect(device.launched == warmup + repeats, "too_many", launched=device.launched, **given)
    expect(float(got) < 2 * want, "no_warmup", **given)
    expect(close(got, want, TOLERANCE), "steady", **given)


def _check_start(fn: Callable, rng: random.Random) -> None:
    """One repeat on a device still busy with other work: the clock must not start before that is done."""
    want, backlog = rng.uniform(2e-3, 5e-3), rng.uniform(0.05, 0.2)
    for warmup in (0, rng.randint(1, 4)):
        got = _run(fn, SimulatedDevice([want], backlog), warmup, 1)
        given = {"want_ms": f"{want * 1e3:.3f}", "got_ms": f"{float(got) * 1e3:.3f}", "warmup": warmup}
        expect(float(got) < 1.5 * want, "no_start", backlog_ms=f"{backlog * 1e3:.0f}", **given)
        expect(close(got, want, TOLERANCE), "steady", repeats=1, **given)


def _check_median(fn: Callable, rng: random.Random) -> None:
    """Uneven repeats with two hiccups, odd and even in number: no other way of choosing one comes near the median."""
    for repeats in (rng.choice([7, 9, 11]), rng.choice([8, 10])):
        base, low = rng.uniform(2e-3, 4e-3), (repeats + 1) // 2
        durations = [base * (1 + 0.05 * step) for step in range(low)]
        durations += [base * (2 + 0.3 * step) for step in range(repeats - low - 2)] + [base * 25, base * 40]
        want = statistics.median(durations)
        while want in (durations[0], durations[repeats // 2], durations[-1]):  # or no sorting would do
            rng.shuffle(durations)
        warmup = rng.randint(1, 3)
        got = _run(fn, SimulatedDevice([base * 12] * warmup + durations), warmup, repeats)
        given = {"want_ms": f"{want * 1e3:.3f}", "got_ms": f"{float(got) * 1e3:.3f}"}
        given["all_ms"] = ", ".join(f"{duration * 1e3:.2f}" for duration in durations)
        expect(not close(got, statistics.fmean(durations), TOLERANCE), "mean", **given)
        expect(not close(got, min(durations), TOLERANCE), "minimum", **given)
        expect(not close(got, max(durations), TOLERANCE), "maximum", **given)
        expect(close(got, want, TOLERANCE), "median", **given)


EXERCISES = [
    Exercise(
        name="time_async",
        notebook="01_profile",
        level="core",
        points=3,
        minutes=6,
        check=_check,
        reference=time_async,
    )
]
