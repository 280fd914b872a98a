"""Tables and timelines of 01_profile: right figures in the right column, with and without a record."""

import random

import pytest

from labkit.course.exercises.profile.planted import FAULTS, planted_timeline
from labkit.course.plots.timelines import timelines
from labkit.course.tables.profile import (
    Baseline,
    beside_record,
    claims,
    stage_runs,
    step_parts,
    target,
    verdict,
)

STAGES = {
    "preprocessing": 0.01,
    "compile": 0.0,
    "prefill": 0.2,
    "decode": 0.7,
    "sampling": 0.06,
    "postprocessing": 0.02,
}


def baseline(**changes):
    figures = {
        "model": "here",
        "prompt_tokens": 400,
        "new_tokens": 32,
        "ttft": 0.04,
        "tpot": 0.005,
        "tokens_per_second": 150.0,
        "mbu": 0.25,
        "idle": 0.5,
        "waiting": 0.0,
        "ridge": 3.0,
        "stages": STAGES,
        "ttft_floor": 0.01,
        "tpot_floor": 0.001,
        "parameters": 14_200_000,
    }
    return Baseline(**{**figures, **changes})


def record(untraced=0.8):
    """What `labkit bench profile` writes, as far as the tables read it."""
    return {
        "device": "NVIDIA H200",
        "date": "2031-02-03",
        "badge": "recorded on NVIDIA H200, 2031-02-03",
        "figures": {
            "model": {"name": "labcoder@7b", "parameters": 6_543_000_000},
            "floors": {"ttft": 0.008, "tpot": 0.003},
            "latency": {
                "prompt_tokens": 469,
                "new_tokens": 32,
                "ttft": 0.03,
                "tpot": 0.02,
                "tokens_per_second": 49.0,
            },
            "stages": {"stages": {name: 0.65 * share for name, share in STAGES.items()}, "e2e": 0.65},
            "gaps": {
                "gap_share": 0.9,
                "untraced_gap_share": untraced,
                "causes": {"waiting": 0.003},
                "traced_seconds": 0.1,
            },
            "ceilings": {"measured": {"flops": 7e14, "bandwidth": 4e12}},
            "utilisation": {"mbu": 0.16},
            "control": {"ratio": 1.01},
        },
    }


def cells(table):
    return {str(row[0]): [str(cell) for cell in row[1:]] for row in table.rows}


def test_the_recorded_column_holds_the_records_figures():
    table = beside_record(baseline(), record())
    assert table.headers == ["", "here", "labcoder@7b"]
    shown = cells(table)
    assert shown["TPOT"] == ["5 ms", "20 ms"]
    assert shown["MBU"] == ["25%", "16%"]
    assert ["50%", "80%"] in shown.values(), "an idle share that tracing has widened is not the one to show"
    assert ["3 FLOP/B", "175 FLOP/B"] in shown.values()
    assert "recorded on NVIDIA H200" in shown[""][1]


def test_without_a_record_there_is_no_empty_column():
    for table in (beside_record(baseline(), None), claims(baseline(), None)):
        assert len({len(row) for row in [table.headers, *table.rows]}) == 1
        assert "recorded" not in str(table)


def test_claims_are_computed():
    table = claims(baseline(), record(untraced=None))
    assert [row[1] for row in table.rows][0] == table.rows[0][2] == "20.5 / 5.9 / 1.5\N{NO-BREAK SPACE}%"
    assert [str(cell) for cell in table.rows[1][2:]] == [
        "135 ms (here, 14.2 M weights)",
        "410 ms (labcoder@7b, 6.54 G weights)",
    ]
    assert table.rows[2][2] == table.rows[2][3] == "1 / 0 / 90 / 6 / 2\N{NO-BREAK SPACE}%"
    assert [str(cell) for cell in table.rows[4][2:]] == ["50\N{NO-BREAK SPACE}%", "90\N{NO-BREAK SPACE}%"]
    assert [str(cell) for cell in table.rows[5][2:]] == ["0\N{NO-BREAK SPACE}%", "3\N{NO-BREAK SPACE}%"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "met"),
        ({"tpot": 0.0129}, "missed by 2.2 ×; the floor lies within it"),
        (
            {"ttft": 0.15, "tpot": 0.001},
            "missed by 1.5 ×; the floor lies within it",
        ),  # the first token is late
        (
            {"tpot": 0.0129, "tpot_floor": 0.01},
            "missed by 2.2 ×; even the floor of all tokens lies beyond it",
        ),
        (
            {"ttft": 0.15, "ttft_floor": 0.12},
            "missed by 1.5 ×; even the floor of the first token lies beyond it",
        ),
    ],
)
def test_the_target_is_judged_on_the_first_token_and_on_all(changes, said):
    shown = cells(target(baseline(**changes), record()))
    assert shown["verdict"] == [said, "missed by 3.2 ×; the floor lies within it"]
    assert shown["tokens after 200 ms"][1] == "9" and shown["first token, at its floor"][1] == "8 ms"
    assert cells(target(baseline(), None))["all 32 tokens"] == ["195 ms"]


def test_a_verdict_follows_the_distance_from_the_floor():
    assert "waits for bytes" in verdict("decode", "memory", 1.4, 1.0)
    far = verdict("decode", "memory", 4.5, 1.0)
    assert "4.5 × its floor" in far and "22%" in far and "overhead" in far and "waits" not in far
    assert "computes" in verdict("prefill", "compute", 1.4, 1.0)
    assert "overhead" in verdict("prefill", "compute", 10.0, 1.0)


def test_the_parts_of_a_step_never_fall_below_nothing():
    shares = [row[1] for row in step_parts(0.010, 0.0022, 0.3).rows]
    assert shares == ["22%", "30%", "48%"]
    assert [row[1] for row in step_parts(0.010, 0.009, 0.2).rows] == ["90%", "20%", "0%"]


def test_ranges_of_stages_run_from_fastest_to_slowest():
    table = stage_runs({"waiting": [{"prefill": 0.02}, {"prefill": 0.01}]}, ["prefill"])
    assert table.rows == [["prefill", "10 ms – 20 ms"]]


def test_timelines_draw_every_run_on_its_own_axis():
    runs = {fault: planted_timeline(fault, random.Random()) for fault in FAULTS}
    axes = timelines(runs).axes
    assert [axis.get_title(loc="left") for axis in axes] == list(runs)
    assert "time" in axes[-1].get_xlabel()
    for axis, (host, _) in zip(axes, runs.values(), strict=True):
        assert axis.get_xlim()[1] >= host[-1][2] / 1e-3
