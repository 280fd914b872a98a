"""Clocks that wait, alternation, percentiles, and the terms of a token stream. No test looks at real time."""

import math

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit import timing
from labkit.errors import LabkitError
from labkit.timing import (
    Latency,
    Measurement,
    compare,
    counted,
    measure,
    percentile,
    tokens_within,
    total_latency,
    ttft_share,
)

seconds = st.floats(min_value=1e-6, max_value=1e3)


class Device:
    """An asynchronous device and the clock beside it: a launch is quick, the work is done when someone waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.time = 100.0
        self.pending = 0.0
        monkeypatch.setattr(timing, "synchronize", lambda device=None: self.wait())

    def launch(self, work: float) -> None:
        self.time += 0.001
        self.pending += work

    def wait(self) -> None:
        self.time += self.pending
        self.pending = 0.0

    def clock(self) -> float:
        return self.time


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40), st.floats(0, 100))
def test_percentile_is_numpys_linear_one(values, q):
    assert percentile(values, q) == pytest.approx(float(numpy.percentile(values, q)), rel=1e-9, abs=1e-9)
    assert min(values) <= percentile(values, q) <= max(values)


@pytest.mark.parametrize(("values", "q"), [([], 50), ([1.0, math.nan], 50), ([1.0], -1), ([1.0], 101)])
def test_percentile_refuses_what_has_none(values, q):
    with pytest.raises(LabkitError):
        percentile(values, q)


def test_measure_times_the_work_and_not_the_launch(monkeypatch):
    device = Device(monkeypatch)
    device.launch(50.0)  # somebody else's work, queued earlier
    found = measure(lambda: device.launch(2.0), warmup=1, repeats=5, clock=device.clock)
    assert found.seconds == pytest.approx([2.001] * 5)


def test_measure_does_not_record_the_warm_up(monkeypatch):
    device = Device(monkeypatch)
    costs = iter([90.0, 80.0, 3.0, 1.0, 2.0])
    found = measure(lambda: device.launch(next(costs)), warmup=2, repeats=3, clock=device.clock)
    assert found.seconds == pytest.approx([3.001, 1.001, 2.001])
    assert (found.median, found.best) == pytest.approx((2.001, 1.001))
    assert found.best < found.low < found.median < found.high


def test_a_measurement_prints_a_range_that_holds_every_one_of_a_few_repeats():
    assert str(Measurement((0.0877, 0.0855, 0.0883))) == "87.7 ms (min 85.5 ms, max 88.3 ms, n=3)"
    assert str(Measurement((0.5,))) == "500 ms (n=1)"
    assert str(Measurement(tuple(range(1, 12)))) == "6 s (10–90 %: 2 s to 10 s, n=11)"
    assert "min 1 s, max 9 s" in str(Measurement(tuple(range(1, 10))))


def test_compare_alternates_and_gives_both_the_same_input():
    calls = []
    compare(
        {"a": lambda x: calls.append(("a", x)), "b": lambda x: calls.append(("b", x))},
        device="cpu", warmup=1, repeats=4, inputs=[(0,), (1,), (2,)],
    )  # fmt: skip
    assert calls[:2] == [("a", 0), ("b", 0)]
    rounds = [calls[start : start + 2] for start in range(2, len(calls), 2)]
    assert [[name for name, _ in pair] for pair in rounds] == [["a", "b"], ["b", "a"]] * 2
    assert [{x for _, x in pair} for pair in rounds] == [{1}, {2}, {0}, {1}]


def test_a_steady_drift_does_not_favour_the_first(monkeypatch):
    device = Device(monkeypatch)
    slower = iter(range(1000))

    def work() -> None:
        device.launch(1 + 0.01 * next(slower))

    found = compare({"a": work, "b": work}, warmup=0, repeats=20, clock=device.clock)
    assert sum(found["a"].seconds) == pytest.approx(sum(found["b"].seconds))


@pytest.mark.parametrize("wrong", [{"repeats": 0}, {"warmup": -1}, {"inputs": []}])
def test_nothing_to_time_is_said(wrong):
    with pytest.raises(LabkitError):
        measure(lambda: None, device="cpu", **wrong)


def test_one_is_singular():
    assert [counted(n, "run") for n in (0, 1, 2)] == ["0 runs", "1 run", "2 runs"]


@st.composite
def latencies(draw, least=1):
    gaps = draw(st.lists(st.floats(0, 5), min_size=least, max_size=60))
    sent = draw(st.floats(0, 1e4))
    stamps = numpy.cumsum([sent + draw(st.floats(0, 5)), *gaps[1:]]).tolist()
    return Latency(sent, tuple(stamps), draw(st.integers(0, len(stamps) - least)))


@given(latencies(least=2))
def test_e2e_is_ttft_and_tpot_for_the_rest(latency):
    n = latency.tokens
    assert n >= 2
    assert latency.e2e == pytest.approx(latency.ttft + latency.tpot * (n - 1), abs=1e-8)
    assert latency.e2e == pytest.approx(total_latency(latency.ttft, latency.tpot, n), abs=1e-8)
    assert len(latency.itl) == n - 1
    assert sum(latency.itl) == pytest.approx(latency.e2e - latency.ttft, abs=1e-8)


def test_silent_tokens_wait_for_the_first_that_shows():
    latency = Latency(1.0, (1.5, 2.0, 2.25, 2.5), silent=1)
    assert (latency.ttft, latency.tokens, latency.tpot, latency.itl) == (1.0, 3, 0.25, (0.25, 0.25))


def test_one_token_has_no_pace():
    latency = Latency(0.0, (0.3,))
    assert latency.tpot is None and latency.itl == () and latency.ttft == latency.e2e == 0.3


@pytest.mark.parametrize(
    ("sent", "stamps", "silent"),
    [(0.0, (), 0), (1.0, (0.5,), 0), (0.0, (1.0, 0.9), 0), (0.0, (math.nan,), 0), (0.0, (1.0,), 1)],
)
def test_impossible_stamps_are_refused(sent, stamps, silent):
    with pytest.raises(LabkitError):
        Latency(sent, stamps, silent)


@given(seconds, seconds, seconds)
def test_tokens_within_is_the_most_that_fits(ttft, tpot, budget):
    n = tokens_within(ttft, tpot, budget)
    slack = budget * (1 + 1e-8)
    if n:
        assert total_latency(ttft, tpot, n) <= slack
    assert total_latency(ttft, tpot, n + 1) > budget * (1 - 1e-8)


def test_tokens_within_counts_as_on_paper():
    assert tokens_within(0.040, 0.005, 0.200) == 33  # 40 ms + 32 · 5 ms, exactly the budget
    assert tokens_within(0.040, 0.005, 0.040) == 1
    assert tokens_within(0.041, 0.005, 0.040) == 0


@pytest.mark.parametrize(("n", "share"), [(32, 20.5), (128, 5.9), (512, 1.5)])
def test_the_claimed_shares_of_ttft(n, share):
    assert round(100 * ttft_share(0.040, 0.005, n), 1) == share


@pytest.mark.parametrize("call", [
    lambda: total_latency(1, 1, 0), lambda: tokens_within(1, 0, 1), lambda: ttft_share(0, 0, 3),
])  # fmt: skip
def test_terms_refuse_what_has_no_meaning(call):
    with pytest.raises(LabkitError):
        call()
