"""Tables and pictures of 05_fuse: right figures in the right column, with and without a record."""

import pytest

from labkit.course import texts
from labkit.course.ledger import Rung
from labkit.course.plots import fuse as plots
from labkit.course.plots.fuse_kernels import kind_of
from labkit.course.tables import fuse as tables
from labkit.course.tables import fuse_record as records
from labkit.fuse import arithmetic
from labkit.models import PRESETS
from labkit.profile import Ceilings
from labkit.profile.shape import Shape
from labkit.profile.timeline import Span

ONE = PRESETS["7b"]
SHAPE = Shape(
    "llama", ONE.layers, ONE.hidden, ONE.heads, ONE.kv_heads, ONE.head_dim, ONE.intermediate, 8192, False, True, 0, 0,
    0, (None,) * ONE.layers, False,
)  # fmt: skip
BADGE = {"device": "NVIDIA H200", "date": "2031-02-03", "badge": "recorded on NVIDIA H200, 2031-02-03"}


def profile_record():
    """What `labkit bench profile` writes, as far as the tables read it."""
    heaviest = [
        {"name": "nvjet_tst", "count": 4, "seconds": 0.02},
        {"name": "elementwise", "count": 9, "seconds": 0.01},
    ]
    gaps = {"tokens": 4, "untraced_seconds": 0.4, "busy_seconds": 0.04, "kernels_per_token": 1462.0}
    return {**BADGE, "figures": {"gaps": {**gaps, "heaviest": heaviest}, "floors": {"tpot": 0.003}}}


def fuse_record():
    """What `labkit bench fuse` writes, as far as the tables read it."""
    rungs = {
        "plain": {
            "tpot": 0.02,
            "step": {"kernels": 1462.0, "launches": 1462.0, "busy": 0.006, "gap_share": 0.7},
        },
        "fused kernels": {"tpot": 0.01},
        "merged projections": {"tpot": 0.008},
        "torch.compile, graph": {"unavailable": "no memory"},
        "everything": {"tpot": 0.004},
    }
    cases = [
        {"kernel": "gated", "shape": "silu, 11008", "tokens": 1, "contenders": {
            "labkit": {"seconds": 2e-6}, "torch": {"seconds": 5e-6}, "liger": {"seconds": 4e-6}}},
        {"kernel": "rms_norm", "shape": "4096", "tokens": 16, "contenders": {
            "labkit": {"seconds": 6e-6}, "torch": {"seconds": 9e-6}, "torch.compile": {"seconds": 3e-6},
            "liger": {"unavailable": "not installed"}}},
        {"kernel": "rope", "shape": "32", "tokens": 4, "contenders": {"labkit": {"seconds": 1e-6}}},
    ]  # fmt: skip
    return {
        **BADGE,
        "figures": {
            "ceilings": {"bandwidth": 4e12},
            "ladder": {"rungs": rungs, "bytes_a_step": 12e9},
            "peers": {"generate": {"tpot": 0.05}, "generate, static cache": {"tpot": 0.006}},
            "kernels": {"cases": cases},
            "ttft": [
                {
                    "prompt": 2048,
                    "rungs": {
                        "plain": {"ttft": 0.06, "mfu": 0.5},
                        "everything": {"ttft": 0.048, "mfu": 0.625},
                    },
                },
                {
                    "prompt": 512,
                    "rungs": {"plain": {"unavailable": "?"}, "everything": {"ttft": 0.01, "mfu": 0.6}},
                },
            ],
            "load": {
                "requests": 256,
                "closed": {
                    "plain": {"tokens_per_second": 2000.0},
                    "everything": {"tokens_per_second": 7000.0},
                },
            },
        },
    }


def test_a_token_is_taken_apart_completely():
    parts = tables.Parts.of_record(profile_record())
    assert (parts.whole, parts.products, parts.others) == pytest.approx((0.1, 0.005, 0.005))
    assert sum(parts.shares.values()) == pytest.approx(1) and parts.shares["gaps"] == pytest.approx(0.9)
    said = str(tables.wait(parts, profile_record()))
    assert "1,462" in said and "90%" in said and "2031-02-03" in said


def test_the_record_becomes_a_ladder_with_its_peers():
    rungs, floor = records.ladder(fuse_record())
    words = texts.words("05_fuse")
    assert list(rungs) == [
        words[f"rung_{name}"] for name in ("plain", "compiled", "engine", "kernels", "merged", "graph")
    ]
    assert floor == pytest.approx(0.003)
    assert records.ladder({**BADGE, "figures": {"ladder": {"unavailable": "no memory"}}}) is None


def test_kernels_are_set_against_the_best_other_and_losses_stay():
    rows = records.kernels(fuse_record()).rows
    assert rows[0][1:5] == ["1", "2 µs", "4 µs (liger)", "2.00 × faster"]
    assert rows[1][1:5] == ["16", "6 µs", "3 µs (torch.compile)", "2.00 × slower"]
    assert len(rows) == 3 and "2031" in str(rows[-1][-1])
    assert records.kernels({**BADGE, "figures": {}}) is None


def test_steps_and_the_service_are_read_from_the_record():
    table = records.steps(fuse_record())
    assert len(table.rows) == 2 and list(table.rows[0][1:]) == ["1,462", "1,462", "6 ms", "70%"]
    rows = records.service(fuse_record()).rows
    assert list(rows[0]) == ["first token of 2,048", "60 ms (MFU 50%)", "48 ms (MFU 62%)", "1.25 ×"]
    assert list(rows[1]) == ["256 requests at once", "2,000 tokens/s", "7,000 tokens/s", "3.50 ×"]
    empty = {
        **BADGE,
        "figures": {
            "ttft": {"unavailable": "?"},
            "load": {"unavailable": "?"},
            "ladder": {"unavailable": "?"},
        },
    }
    assert records.steps(empty) is None and records.service(empty) is None


@pytest.mark.parametrize("entry", [None, fuse_record()])
def test_claims_put_each_machine_into_its_column(entry):
    old = Rung("plain", "m", "d", ttft=0.03, tpot=0.032, notebook="01_profile")
    new = Rung("fused", "m", "d", ttft=0.01, tpot=0.004, notebook="05_fuse")
    here = records.Figures(old, None, (0.008, 0.007), (2048, 6.0))
    there = records.figures({"01_profile": old, "05_fuse": new}, entry)
    table = records.claims("here", here, there, {**BADGE})
    assert all(len(row) == len(table.headers) for row in table.rows)
    said = str(table)
    assert "6.00 × at 2,048 tokens" in said and "31 → 250 (8.00 ×)" in said and "1.14 ×" in said
    assert ("20 ms → 8 ms (2.50 ×)" in said) == ("167 tokens/s" in said) == (entry is not None)
    climbed = records.Figures(None, None, None, None, ladder=(0.02, 0.01))
    assert "50 → 100 (2.00 ×)" in str(records.claims("here", climbed, None, None))
    alone = records.claims("here", here, records.figures({}, entry), None)
    assert len(alone.headers) == 3 and "31 → 250" not in str(alone)


def test_other_tables_say_what_they_were_given():
    assert "33%" in str(tables.norm({1: (300, 200)}, 10**6))
    said = str(tables.touched({"a": 8}, {"b": 16}, {"a": 8, "b": 16}))
    assert said.count("16") == 2 and said.count("8") == 2
    words = texts.words("05_fuse")
    rows = tables.captures(
        [("new_values", "1", "2", "2"), ("new_tensor", "1", "1", "2"), ("branch", words["refused"], "–", "–")]
    ).rows
    assert [row[-1] for row in rows] == ["yes", "no", "refused"]
    assert [row[0] for row in tables.switches([("norm", 7, 0.001, 0.0)]).rows] == ["norm"]
    assert "2.00 ×" in str(tables.scenarios({"no_gaps": 2.0}))
    title = tables.moved_title(
        2048, arithmetic.layer_traffic(SHAPE, 2048, 2), arithmetic.layer_weights(SHAPE, 2)
    )
    assert "2,048" in title and "×" in title


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten::linear", "matrix product"),
        ("nvjet_sm90_tst_128x8", "matrix product"),
        ("void cublasLt::splitKreduce_kernel<32>", "matrix product"),
        ("aten::scaled_dot_product_attention", "attention"),
        ("cudnn_generated_fort_native_sdpa_sm80_flash_fprop", "attention"),
        ("rms_norm_kernel", "norm"),
        ("aten::rsqrt", "norm"),
        ("Memcpy DtoD (Device -> Device)", "copy"),
        ("aten::silu", "other"),
    ],
)
def test_kernels_are_told_apart_by_name(name, kind):
    assert kind_of(name) == kind


def test_tiles_are_drawn_where_their_program_wrote():
    written = {
        (row, at): [row * 10 + c for c in range(at * 4, min(10, at * 4 + 4))]
        for row in (0, 1)
        for at in (0, 1, 2)
    }
    axes = plots.tiles(written, 2, 10, 4).axes[0]
    said = {text.get_text() for text in axes.texts}
    assert {f"{row}, {at}" for row in (0, 1) for at in (0, 1, 2)} <= said
    widths = sorted(box.get_width() for box in axes.patches)
    assert widths == [2] * 4 + [4] * 4  # the last program of a row, and what it masks


def test_pictures_draw():
    traffic, weights = arithmetic.layer_traffic(SHAPE, 512, 2), arithmetic.layer_weights(SHAPE, 2)
    spans = [
        Span("aten::linear", 0.001, 0.002),
        Span("aten::mul", 0.0035, 0.0005),
        Span("aten::mul", 0.02, 0.1),
    ]
    moves = [plots.Move(one.name, one.flops, one.unfused, one.fused) for one in traffic]
    ceilings = Ceilings(bandwidth=4e12, flops=8e14, name="x", source="y")
    for drawn in (
        plots.amdahl({"gaps": 0.85, "a": 0.1, "b": 0.05}),
        plots.moved(traffic, weights, "title", ["unfused", "fused", "weights"]),
        plots.kernels({"one": (spans, 0.0, 0.01), "two": (spans, 0.0, 0.005)}),
        plots.launches({"eager": (9, 2e-5, 4e-6), "graph": (9, 1e-7, 4e-6)}, ("host", "device")),
        plots.attention([16, 32], {"apart": [1.0, 4.0], "fused": [0.5, 1.0]}),
        plots.ladder({"here": ({"plain": 0.02, "fused": 0.004}, 0.003)}),
        plots.moves(moves, ceilings),
    ):
        assert drawn.axes[-1].get_xlabel()
    kernels = plots.kernels({"one": (spans, 0.0, 0.01)}).axes[0]
    drawn = sum(len(bars.get_paths()) for bars in kernels.collections)
    assert drawn == 2  # the third is outside the stretch
    ladder = plots.ladder({"here": ({"plain": 0.02, "fused": 0.004}, 0.003)}).axes[0]
    assert [text.get_text() for text in ladder.texts] == [
        "50 tokens/s · 15% of the ceiling", "250 tokens/s · 75% of the ceiling",
    ]  # fmt: skip
