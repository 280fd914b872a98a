"""Policies tried out: the virtual engine in one call, the decode curve, and the pictures and tables of 03_batch."""

import itertools
import json
import random

import pytest

from labkit import results
from labkit.batch import bench, explore
from labkit.batch.explore import decode_curve, virtual_engine
from labkit.batch.metrics import StepRecord
from labkit.batch.policy import Continuous, static
from labkit.batch.replay import replay
from labkit.batch.virtual import CostModel
from labkit.batch.workload import workload
from labkit.course.plots import batch as plots
from labkit.course.plots import batch_queue
from labkit.course.tables import batch as tables
from labkit.models import load

COSTS = CostModel(step=0.01, token=0.001)
TEXT = list(range(2000))


def runs():
    load_ = workload(TEXT, 12, prompts=(5, 40), outputs=(2, 30), rate=50, seed=random.randrange(10**6))
    policies = {
        "one at a time": static(1),
        "static": static(4),
        "dynamic": static(4),
        "continuous": Continuous(4),
        "continuous, all": Continuous(),
    }
    engines = {name: virtual_engine(COSTS, policy, share=False) for name, policy in policies.items()}
    return {name: replay(engine, load_) for name, engine in engines.items()}, engines


def test_a_virtual_engine_takes_the_time_that_its_costs_say():
    load_ = workload(TEXT, 5, prompts=(7, 7), outputs=(4, 4))
    engine = virtual_engine(COSTS, share=False)
    # one step of 35 tokens, and three of 5
    assert replay(engine, load_).seconds == pytest.approx(4 * 0.01 + (35 + 15) * 0.001)
    assert engine.metrics.count == 4


def test_decode_curve_has_every_size_and_the_steps_of_prompts():
    sizes = (1, 3)
    curve, records = decode_curve(
        load("labcoder", device="cpu"), TEXT, sizes, prompts=(4, 9), steps=4, rounds=2
    )
    assert set(curve) == set(sizes) and all(seconds > 0 for seconds in curve.values())
    for size in sizes:
        full = [n for n, record in enumerate(records) if record.decodes == record.tokens == size]
        assert len(full) == 2 * max(4, 16 // size)
        # up, then down: the smallest size runs first and last
        assert (full[0] < 3 and full[-1] == len(records) - 1) == (size == 1)
    assert any(record.pairs for record in records)


@pytest.mark.parametrize("graphs", [False, True])
def test_decode_curve_asks_its_engine_for_graphs(graphs, monkeypatch):
    asked, plain = [], explore.engine_for
    monkeypatch.setattr(
        explore, "engine_for", lambda *args, **named: asked.append(named["graphs"]) or plain(*args, **named)
    )
    lm = load("labcoder", device="cpu")
    curve, _ = decode_curve(lm, TEXT, (2,), prompts=(4, 5), steps=2, rounds=1, graphs=graphs)
    assert asked == [graphs] and curve[2] > 0


def test_slots_never_hold_two_requests_at_once():
    _, engines = runs()
    for name, engine in engines.items():
        found = plots.pieces(engine.metrics.steps)
        assert set(found) == set(range(12))
        lane = plots.slots(found)
        assert max(lane.values()) < {"continuous, all": 12, "one at a time": 1}.get(name, 4)
        for one, other in itertools.combinations(found, 2):
            if lane[one] == lane[other]:
                assert found[one][-1][2] <= found[other][0][1] or found[other][-1][2] <= found[one][0][1]
        for parts in found.values():
            assert all(here[2] <= there[1] for here, there in itertools.pairwise(parts))


def test_pictures_are_drawn():
    measured, engines = runs()
    three = {name: engines[name].metrics.steps for name in ("static", "dynamic", "continuous")}
    assert [axes.get_title(loc="left") for axes in plots.gantt(three).axes] == list(three)
    came = {name: [ticket.arrival for ticket in measured[name].tickets] for name in three}
    for axes, name in zip(plots.gantt(three, came).axes, three, strict=True):
        *_, marks = axes.lines if name != "static" else axes.lines[:1]
        assert len(marks.get_xdata()) == 12 and min(marks.get_xdata()) == 0
    bars = (
        batch_queue.queue(measured["one at a time"], engines["one at a time"].metrics.steps)
        .axes[0]
        .collections
    )
    assert len(bars) >= 3 * 12
    assert len(plots.batch_curve({1: 0.01, 4: 0.02}, {1: 18.0, 4: 30.0}).axes) == 2
    plots.waits([0.1, 0.2], [0.05, 0.1], title="any", marks={"200 ms": 0.2})
    plots.load_curve({name: [(1.0, 0.1), (2.0, run.ttft(95))] for name, run in measured.items()}, limit=0.2)


def record(*, step=0.02, ratio=0.9, equal=100, **load_):
    ours = {"static": (800.0, 200, 16), "continuous, few": (1600.0, 100, 32), "continuous": (3200.0, 50, 64)}
    keys = ("tokens_per_second", "steps", "rows_a_step")
    skewed = {"ours": {name: dict(zip(keys, values, strict=True)) for name, values in ours.items()}}
    skewed["transformers"] = {"defaults": {"tokens_per_second": 900.0}, "odd": {"unavailable": "no"}}
    return {
        "device": "NVIDIA H200",
        "date": "2031-02-03",
        "figures": {
            "model": "labcoder@7b",
            "decode_step": {str(size): 0.02 for size in (1, 2, 4, 8, 16, 32)},
            "plan": {"batch": 40},
            "prediction": {"ratio": ratio, "costs": {"step": step}},
            "loads": {
                "skewed": skewed | load_,
                "equal": {
                    "one_by_one": {"tokens_per_second": 31.0},
                    "ours": {"static": {"steps": equal}, "continuous, few": {"steps": 100}},
                },
            },
        },
    }


@pytest.mark.parametrize("entry", [None, record(), record(transformers={})], ids=["none", "whole", "no peer"])
def test_tables_with_and_without_a_record(entry):
    measured, _ = runs()
    table = tables.beside_record("here", measured, 77.0, CURVE, 0.8, entry)
    assert table.rows[1][1] == ("50 ms" if entry is None else "30 ms") and table.rows[2][1] == "77 tokens/s"
    assert len(table.headers) == (2 if entry is None else 3)
    assert all(len(row) == len(table.headers) for row in table.rows)
    sizes = {size: float(size) for size in (1, 2, 4, 8, 16)}
    claims = tables.claims(sizes, "0 ms", {"static": 0.3, "continuous": 0.8}, 1.5, entry)
    assert claims.rows[2][2] == "30% → 80%" and claims.rows[3][2] == "1.50 ×"
    assert all(len(row) == len(claims.headers) for row in claims.rows)
    if entry is not None:
        assert table.rows[1][2] == "20 ms" and "32 rows" in table.rows[1][0]
        assert table.rows[2][2] == "31 tokens/s" and table.rows[4][2] == "1,600 tokens/s"
        assert table.rows[-2][1:] == ["0.80", "0.90"]
        assert table.rows[6][2] == (
            "900 tokens/s" if entry["figures"]["loads"]["skewed"]["transformers"] else "–"
        )
        assert claims.rows[0][3] == "1.00 / 2.00 / 4.00 / 8.00 / 16.00"
        assert claims.rows[2][3] == "40% → 80%" and claims.rows[3][3] == "2.00 ×"


CURVE = {1: 0.01, 32: 0.03, 64: 0.05}


def test_notes_say_only_what_the_record_shows():
    flat = tables.notes(record())
    assert "1.00 ×" in flat[0] and "nearly the same" in flat[0] and "2.0 ×" in flat[1] and len(flat) == 3
    assert len(tables.notes(record(equal=200))) == 2
    *_, off = tables.notes(record(ratio=0.33))
    assert "0.33" in off and "fixed cost" not in off
    *_, off = tables.notes(record(ratio=0.33, step=0))
    assert "0.33" in off and "fixed cost" in off
    slow = record()
    slow["figures"]["decode_step"]["32"] = 0.2
    assert "10.00 ×" in tables.notes(slow)[0] and "nearly" not in tables.notes(slow)[0]


def test_the_notes_of_the_record_in_the_repository():
    entry = results.load("batch")
    assert entry is not None and all("{" not in said for said in tables.notes(entry))


@pytest.fixture(scope="module")
def benched():
    """`labkit bench batch`, as small as it gets."""
    plan = bench.Plan(6, (8, 24), 6, ((2, 4), (8, 12), 0.3), batch=2, rows=4, alone=2)
    return json.loads(json.dumps(bench.run("labcoder-draft", "cpu", plan)))


def test_the_benchmark_serves_every_token_and_its_record_fits_the_tables(benched):
    for load_ in benched["loads"].values():
        for one in load_["ours"].values():
            assert one["tokens_per_second"] == pytest.approx(load_["output_tokens"] / one["seconds"])
            assert 0 < one["rows_a_step"] <= 4 and one["step_s"]["50"] <= one["step_s"]["100"]
    assert benched["loads"]["equal"]["output_tokens"] == 36 and list(benched["decode_step"]) == [
        "1",
        "2",
        "4",
    ]
    assert (
        benched["loads"]["equal"]["ours"]["static"]["steps"] == 3 * 6
    )  # three batches of two, six tokens each
    benched["decode_step"] |= dict.fromkeys(("8", "16"), 0.02)
    entry = {"device": "some GPU", "date": "2031-02-03", "figures": benched}
    assert len(tables.beside_record("here", runs()[0], 77.0, CURVE | {16: 0.02}, 0.8, entry).headers) == 3
    assert len(tables.claims({1: 1.0}, "0 ms", {"static": 0.3, "continuous": 0.8}, 1.5, entry).rows[0]) == 4
    assert tables.notes(entry)


def test_tables_of_runs_and_predictions():
    measured, _ = runs()
    assert len(tables.schedulers(measured).rows) == len(measured)
    assert all(row[3] == "1.00" for row in tables.prediction(measured, measured).rows)
    assert [row[1] for row in tables.costs(COSTS).rows] == ["10 ms", "1 ms", "0 s", "0 s", "0 s"]
    assert tables.law(dict(tables.LAW)).rows[0][1:] == tables.law(dict(tables.LAW)).rows[1][1:]


def test_a_piece_of_a_prompt_is_no_decoding():
    def step(start, rows):
        return StepRecord(start, start + 1.0, rows, *[0] * 11)

    found = plots.pieces([step(0.0, ((7, 0, 5),)), step(1.0, ((7, 0, 3),)), step(2.0, ((7, 0, 1),))])
    assert found == {7: [("prefill", 0.0, 2.0), ("decode", 2.0, 3.0)]}


def test_decode_curve_finds_full_steps_when_prompts_take_several():
    curve, records = decode_curve(
        load("labcoder", device="cpu"), TEXT, (48,), prompts=(80, 96), steps=2, rounds=1
    )
    assert curve[48] > 0 and sum(bool(record.pairs) for record in records) > 2
