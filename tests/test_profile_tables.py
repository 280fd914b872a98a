"""Tables and timelines of 01_profile: right figures in the right column, with and without a record."""

import random

from labkit.course.exercises.profile.planted import FAULTS, planted_timeline
from labkit.course.plots.timelines import timelines
from labkit.course.tables.profile import Baseline, beside_record, claims

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
    }
    return Baseline(**{**figures, **changes})


def record(untraced=0.8):
    """What `labkit bench profile` writes, as far as the tables read it."""
    return {
        "device": "NVIDIA H200",
        "date": "2031-02-03",
        "badge": "recorded on NVIDIA H200, 2031-02-03",
        "figures": {
            "model": {"name": "labcoder@7b"},
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
    assert [str(cell) for cell in table.rows[1][2:]] == ["135 ms (here)", "410 ms (labcoder@7b)"]
    assert table.rows[2][2] == table.rows[2][3] == "1 / 0 / 90 / 6 / 2\N{NO-BREAK SPACE}%"
    assert [str(cell) for cell in table.rows[4][2:]] == ["50%", "90%"]


def test_timelines_draw_every_run_on_its_own_axis():
    runs = {fault: planted_timeline(fault, random.Random()) for fault in FAULTS}
    axes = timelines(runs).axes
    assert [axis.get_title(loc="left") for axis in axes] == list(runs)
    assert "time" in axes[-1].get_xlabel()
    for axis, (host, _) in zip(axes, runs.values(), strict=True):
        assert axis.get_xlim()[1] >= host[-1][2] / 1e-3
