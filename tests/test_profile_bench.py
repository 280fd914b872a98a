"""Ceilings, roofline, grid, benchmark and pictures: consistent with each other, whatever the machine's speed."""

import io
import json
import math

import pytest
import torch
from profile_stand_in import tiny_lm

from labkit import results
from labkit.course.plots.profile import prediction_heat, prediction_lines, roofline, stage_bar, token_gaps
from labkit.course.style import STAGE, TECHNIQUE, ink, styled
from labkit.errors import LabkitError
from labkit.profile import DATASHEET, Ceilings, bench, cache_bytes, ceilings, peaks, roofline_points
from labkit.profile.budget import STAGES
from labkit.profile.grid import measure_grid
from labkit.profile.plan import Plan, estimate, within_budget
from labkit.timing import Latency

PEAKS = Ceilings(1e10, 1e11, "plain", "test", "float32")
SMALL = Plan(
    prompts=(8, 24), outputs=(2, 4, 6), new_tokens=4, repeats=2, traced=2, prompt_characters=30, budget=60
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ceilings_are_positive_and_name_their_source(monkeypatch, dtype):
    monkeypatch.setattr(peaks, "_REPEATS", 2)
    monkeypatch.setattr(peaks, "_read_size", lambda device: 8 * 2**20)
    monkeypatch.setattr(peaks, "_MATRICES", {"cpu": (64, 128)})
    found = ceilings("cpu", dtype)
    assert found.bandwidth > 0 and found.flops > 0 and math.isfinite(found.ridge)
    assert found.dtype == str(dtype).removeprefix("torch.") and "measured" in found.source


@pytest.mark.parametrize("wrong", [{"device": "gpu"}, {"device": "cpu:3"}, {"dtype": torch.int8}])
def test_ceilings_take_the_devices_and_dtypes_of_models(wrong):
    with pytest.raises(LabkitError):
        ceilings(**{"device": "cpu", **wrong})


def test_the_read_does_not_fit_into_the_cache():
    assert peaks._read_size(torch.device("cpu")) > cache_bytes("cpu") > 0


def test_roofline_points_lie_on_the_roof():
    points = roofline_points(
        tiny_lm(), PEAKS, prompts=(16, 400), contexts=(64,), batches=(1, 4),
        prefill_seconds={16: 0.1}, decode_seconds={1: 0.01},
    )  # fmt: skip
    assert [(point.phase, point.tokens, point.batch) for point in points] == [
        ("prefill", 16, 1), ("prefill", 400, 1), ("decode", 64, 1), ("decode", 64, 4),
    ]  # fmt: skip
    for point in points:
        assert point.attainable == min(PEAKS.flops, point.intensity * PEAKS.bandwidth)
    assert [point.measured is not None for point in points] == [True, False, True, False]
    assert points[0].reached == points[0].measured / points[0].attainable


def test_the_grid_is_read_from_runs_that_are_kept():
    lm = tiny_lm()
    ids = torch.randint(0, 256, (1, 24))
    grid = measure_grid(lm, ids, PEAKS, prompts=(8, 24), outputs=(2, 5), repeats=3)
    assert [(cell.prompt, cell.output) for cell in grid.cells] == [(8, 2), (8, 5), (24, 2), (24, 5)]
    assert {size: len(runs) for size, runs in grid.runs.items()} == {8: 3, 24: 3}
    for cell in grid.cells:
        ends = sorted(run.stamps[cell.output - 1] for run in grid.runs[cell.prompt])
        assert cell.e2e == ends[1]
        assert cell.floor == pytest.approx(cell.floor_ttft + cell.floor_tpot * (cell.output - 1))
    assert grid.cells[1].floor_tpot > grid.cells[0].floor_tpot  # a longer answer reads more cache


def test_a_plan_is_cut_until_it_fits():
    plan = Plan(prompts=(64, 256, 4096), budget=40)
    cut = within_budget(plan, prefill_each=1e-4, decode_each=0.05)
    assert estimate(cut, 1e-4, 0.05) <= 40 < estimate(plan, 1e-4, 0.05)
    assert cut.outputs == plan.outputs[: len(cut.outputs)] and len(cut.outputs) < 4
    assert within_budget(plan, 1e-6, 1e-5) == plan
    least = within_budget(plan, 1.0, 1.0)  # hopeless: what always stays
    assert (len(least.prompts), len(least.outputs), least.repeats, least.new_tokens) == (2, 2, 2, 8)


@pytest.fixture(scope="module")
def benched():
    """One small run: the figures and what was printed."""
    asked = []

    def load(name, **arguments):
        asked.append((name, arguments))
        return tiny_lm()

    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench, "load", load)
        patch.setattr(bench, "evaluation_text", lambda name: "def add(a, b):\n    return a + b\n" * 9)
        patch.setattr(bench, "ceilings", lambda device, dtype: PEAKS)
        patch.setattr("sys.stdout", printed)
        figures = bench.run("labcoder", "cpu", SMALL)
    return figures, printed.getvalue(), asked


def test_the_benchmark_measures_everything_and_ends_in_json(benched):
    figures, printed, asked = benched
    plain = results.to_plain(figures)
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    last = json.loads(printed.strip().splitlines()[-1])
    assert last["bench"] == "profile" and 0 < last["mbu"] and last["random_weights_ratio"] > 0
    assert {"ceilings", "stages", "latency", "utilisation", "gaps", "grid", "control", "roofline"} <= set(
        plain
    )
    assert [arguments.get("random_weights", False) for _, arguments in asked] == [False, True]


def test_the_benchmark_keeps_every_repeat(benched):
    plain = results.to_plain(benched[0])
    assert len(plain["latency"]["runs"]) == SMALL.repeats
    assert all(len(run["stamps"]) == SMALL.new_tokens for run in plain["latency"]["runs"])
    assert len(plain["stages"]["runs"]) == len(plain["stages"]["unsynchronised_runs"]) == SMALL.repeats
    assert all(len(runs) == SMALL.repeats for runs in plain["grid"]["runs"].values())
    assert all(len(run["seconds"]) == SMALL.repeats for run in plain["control"]["runs"].values())


def test_the_benchmark_counts_mbu_as_defined(benched):
    figures = benched[0]
    model, latency = figures["model"], figures["latency"]
    context = latency["prompt_tokens"] + latency["new_tokens"] // 2
    moved = model["weight_bytes_read"] + model["kv_bytes_per_token"] * context
    assert figures["utilisation"]["mbu"] == pytest.approx(moved / latency["tpot"] / PEAKS.bandwidth)


CELLS = [
    {"prompt": prompt, "output": output, "e2e": 0.02 * output + prompt * 1e-4, "floor": 0.004 * output}
    for prompt in (64, 256, 1024)
    for output in (8, 16, 32)
]
PICTURES = {
    "stages": lambda: stage_bar({"here": {stage: 0.01 * (i + 1) for i, stage in enumerate(STAGE)}}),
    "shares": lambda: stage_bar({"a": {"prefill": 3, "decode": 1}, "b": {"decode": 2}}, shares=True),
    "gaps": lambda: token_gaps(Latency(0.0, (0.4, 0.41, 0.42, 0.45)), marks={"x": 0.2}),
    "one token": lambda: token_gaps(Latency(0.0, (0.4,))),
    "roofline": lambda: roofline(
        roofline_points(tiny_lm(), DATASHEET["H200-SXM"], batches=(1, 8), decode_seconds={1: 1e-3}),
        DATASHEET["H200-SXM"],
    ),
    "lines": lambda: prediction_lines(CELLS, 256, 16, predicted=lambda prompt, n: 0.02 * n),
    "heat": lambda: prediction_heat(CELLS[:-1]),
}


def test_a_logarithmic_axis_says_so_and_its_ticks_are_plain():
    axes = token_gaps(Latency(0.0, (0.4, 0.41, 0.42, 0.45))).axes[0]
    assert axes.get_yscale() == "log" and "logarithmic" in axes.get_ylabel()
    assert [axes.yaxis.get_major_formatter()(value) for value in (10, 100)] == ["10", "100"]
    assert "logarithmic" not in token_gaps(Latency(0.0, (0.4, 0.7, 1.0))).axes[0].get_ylabel()


def test_the_other_prompts_are_in_the_legend_once():
    legend = prediction_lines(CELLS, 256, 16).axes[0].get_legend()
    assert [text.get_text() for text in legend.get_texts()].count("other prompts") == 1


@pytest.mark.parametrize("name", PICTURES)
def test_every_picture_is_drawn_with_units_on_its_axes(name):
    import matplotlib

    before = dict(matplotlib.rcParams)
    figure = PICTURES[name]()
    assert dict(matplotlib.rcParams) == before  # the style does not leak into the learner's own plots
    axes = figure.axes[0]
    assert "(" in axes.get_xlabel() and ")" in axes.get_xlabel()
    if name not in ("stages", "shares"):  # their rows are named, not measured
        assert "(" in axes.get_ylabel() and ")" in axes.get_ylabel()
    target = io.BytesIO()
    figure.savefig(target)
    assert len(target.getvalue()) > 5000


def test_every_stage_and_technique_has_a_colour_of_its_own():
    assert set(STAGES) | {"remainder"} == set(STAGE)
    for palette in (STAGE, TECHNIQUE):
        assert len(set(palette.values())) == len(palette)
    assert (ink("#0072B2"), ink("#F0E442")) == ("#ffffff", "#1a1a1a")
    with styled():
        import matplotlib

        assert matplotlib.rcParams["axes.grid"]
