"""`labkit bench fuse` as small as it gets, and the contests it is made of: counts, bytes and exactness, no times."""

import json
from dataclasses import replace

import pytest
import torch

from labkit import fuse, results
from labkit.batch import bench, bench_fuse, fuse_parts, rungs
from labkit.batch.fuse_parts import Plan, plan_for
from labkit.batch.rungs import RUNGS, Rung, in_rounds, standing
from labkit.errors import LabkitError
from labkit.fuse import bench_attention, bench_kernels, compiled
from labkit.fuse.contest import contest, copies
from labkit.models import load
from labkit.profile import Ceilings, shape_of

CPU = torch.device("cpu")
PEAKS = Ceilings(1e10, 1e11, "plain", "test", "float32")
SMALL = Plan(
    replace(bench.plan_for("cpu"), requests=4, prompts=(5, 19), new=5, rows=3),
    prompt=17, new=6, rounds=2, repeats=2, prompts=(33, 70), tokens=(1, 3), long=(), compiling=False,
    sizes=((1, 37), (3, 18)), timed=2, rows=2, blocks=16,
)  # fmt: skip


def quiet(said: str) -> None:
    """Nobody listens."""


@pytest.fixture(scope="module")
def benched():
    """One small run of everything: the figures, as a reader of the record finds them, and what was printed."""
    said: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench_fuse, "ceilings", lambda device, dtype: PEAKS)
        patch.setattr(results, "load", lambda *_: None)
        patch.setattr(bench_fuse, "print", said.append, raising=False)
        figures = bench_fuse.run("labcoder-draft", "cpu", SMALL)
    return json.loads(json.dumps(results.to_plain(figures), allow_nan=False)), said


def test_every_part_is_measured_and_the_last_line_is_json(benched):
    figures, said = benched
    assert list(figures["seconds"]) == list(bench_fuse.PARTS)
    for part in bench_fuse.PARTS:
        assert "unavailable" not in figures[part]
    last = json.loads(said[-1])
    assert (
        last["bench"] == "fuse" and last["share"] > 0 and last["kernels"] == len(figures["kernels"]["cases"])
    )


def test_the_ladder_keeps_every_repeat_and_its_share_is_what_it_says(benched):
    ladder = benched[0]["ladder"]
    assert list(ladder["rungs"]) == [rung.name for rung in RUNGS if not rung.compiled]
    for one in ladder["rungs"].values():
        assert len(one["runs"]["seconds"]) == SMALL.rounds * SMALL.repeats
        assert one["share"] == pytest.approx(ladder["bytes_a_step"] / one["tpot"] / PEAKS.bandwidth)
        assert one["tokens_per_second"] == pytest.approx(1 / one["tpot"])
    assert ladder["tpot_floor"] >= ladder["bytes_a_step"] / PEAKS.bandwidth * (1 - 1e-9)
    everything, control = (
        ladder["rungs"][name]["tpot"] for name in ("everything", "everything, random weights")
    )
    assert ladder["control"] == pytest.approx(everything / control)


def test_fusing_launches_less(benched):
    steps = {name: one["step"]["kernels"] for name, one in benched[0]["ladder"]["rungs"].items()}
    assert steps["merged projections"] < steps["fused kernels"] <= steps["plain"]


def test_the_load_is_served_whole_closed_and_open(benched):
    load_ = benched[0]["load"]
    assert load_["output_tokens"] == 4 * 5
    for one in load_["closed"].values():
        assert one["complete"] and one["tokens_per_second"] == pytest.approx(20 / one["seconds"])
    closed = load_["closed"]["everything"]
    assert len(closed["runs"]) == SMALL.repeats
    assert load_["open"]["requests_per_second"] == pytest.approx(0.5 * 4 / closed["seconds"])
    assert load_["open"]["tpot_ratio"] == pytest.approx(load_["open"]["tpot"]["50"] / closed["tpot"]["50"])


def test_times_to_first_tokens_and_peers(benched):
    figures = benched[0]
    assert [one["prompt"] for one in figures["ttft"]] == [33, 70]
    for one in figures["ttft"]:
        for rung in one["rungs"].values():
            assert rung["mfu"] == pytest.approx(one["flops"] / rung["ttft"] / PEAKS.flops)
    assert [one["compiled"] for one in figures["peers"].values()] == [False, False]
    assert all(len(one["runs"]["seconds"]) == SMALL.repeats for one in figures["peers"].values())


def test_contenders_compute_the_same(benched):
    figures = benched[0]
    for case in figures["kernels"]["cases"]:
        for name, one in case["contenders"].items():
            if name != bench_kernels.LIGER and name != bench_kernels.LESS:
                assert one["difference"] < 1e-5 and one["share"] == pytest.approx(
                    one["rate"] / PEAKS.bandwidth
                )
    for shape in figures["attention"]["prefill"]:
        ours = shape["contenders"][bench_attention.OURS]
        assert ours["difference"] < 1e-5 and ours["rate"] == pytest.approx(shape["flops"] / ours["seconds"])


def test_parts_can_be_chosen_and_the_others_are_kept(benched, monkeypatch):
    figures, _ = benched
    entry = {"date": "2031-02-03", "commit": "abc", "command": "labkit bench fuse", "figures": figures}
    monkeypatch.setattr(results, "load", lambda *_: entry)
    monkeypatch.setattr(bench_fuse, "ceilings", lambda device, dtype: PEAKS)
    again = bench_fuse.run("labcoder-draft", "cpu", SMALL, only="attention, kernels")
    assert list(again["seconds"]) == ["kernels", "attention"]
    assert again["ladder"] == figures["ladder"] and again["attention"] is not figures["attention"]
    assert again["carried"].keys() == {"ladder", "ttft", "load", "peers"}
    assert again["carried"]["ladder"] == {
        "date": "2031-02-03",
        "commit": "abc",
        "command": "labkit bench fuse",
    }


def test_an_unknown_part_is_named():
    with pytest.raises(LabkitError, match="oven"):
        bench_fuse.run("labcoder-draft", "cpu", SMALL, only="ladder,oven")


def test_a_part_that_fails_does_not_take_the_others_along(monkeypatch, capsys):
    def broken(kitchen):
        raise RuntimeError("out of gas\nand more")

    monkeypatch.setattr(bench_fuse, "PARTS", {"ladder": broken, "ttft": lambda kitchen: []})
    monkeypatch.setattr(bench_fuse, "ceilings", lambda device, dtype: PEAKS)
    monkeypatch.setattr(results, "load", lambda *_: None)
    figures = bench_fuse.run("labcoder-draft", "cpu", SMALL)
    assert figures["ladder"] == {"unavailable": "RuntimeError: out of gas"} and figures["ttft"] == []
    assert "out of gas" in capsys.readouterr().out


def test_a_rung_that_fails_leaves_the_model_as_it_was():
    lm = load("labcoder-draft", device="cpu")
    before = {name: parameter.data_ptr() for name, parameter in lm.model.named_parameters()}
    forward = lm.model.get_decoder().layers[0].forward

    def work(engine, rung, number):
        if rung.name == "bad":
            raise RuntimeError("no gas")
        return [1.0 + number]

    found = in_rounds(
        {False: lm}, (Rung("good"), Rung("bad", {})), work, rounds=3, say=quiet, rows=2, blocks=8
    )
    assert found["good"]["runs"].seconds == (1.0, 2.0, 3.0) and found["bad"] == {
        "unavailable": "RuntimeError: no gas"
    }
    assert lm.model.get_decoder().layers[0].forward == forward
    assert before.keys() == {name for name, _ in lm.model.named_parameters()}
    assert lm.config._attn_implementation != "labkit"


def test_a_request_that_fails_is_no_measurement():
    lm = load("labcoder-draft", device="cpu")
    with standing(lm, rungs.PLAIN, rows=1, blocks=4) as engine:
        lm.model.get_decoder().forward = lambda *args, **kwargs: 1 / 0
        with pytest.raises(RuntimeError, match="ZeroDivision"):
            rungs.answer(engine, [1, 2, 3], 4, 0)


def test_a_rung_is_what_it_says_whatever_stood_before():
    lm = load("labcoder-draft", device="cpu")
    layer = lm.model.get_decoder().layers[0]
    fuse.apply(lm)
    with standing(lm, rungs.PLAIN, rows=1, blocks=4):
        assert "forward" not in vars(layer)
    compiled.apply(lm, backend="eager")
    with standing(lm, Rung("fused", {}), rows=1, blocks=4):
        assert vars(lm.model)["_labkit_fuse"].report.applied["model.layers.0"]
    assert "forward" not in vars(layer)


def test_a_contest_reports_failures_and_differences():
    def fails(x):
        raise ValueError("no such kernel\nhere")

    inputs = [(torch.full((3,), float(n)),) for n in (1, 2)]
    found = contest(
        {"off": lambda x: x + 0.5, "bad": fails, "base": lambda x: (2 * x, x)}, inputs, CPU, baseline="base",
        repeats=3, calls_each=5,
    )  # fmt: skip
    assert list(found) == ["off", "bad", "base"]
    assert found["bad"] == {"unavailable": "ValueError: no such kernel"}
    assert found["off"]["difference"] == pytest.approx(0.25) and found["base"]["difference"] == 0
    assert found["off"]["calls"] == 6 and len(found["off"]["runs"]) == 3


def test_what_gives_no_numbers_takes_no_part_in_a_contest():
    calls = {"nan": lambda x: x * torch.nan, "inf": lambda x: x * torch.inf, "base": lambda x: x}
    for baseline in calls:
        found = contest(calls, [(torch.ones(3),)], CPU, baseline=baseline, repeats=2)
        results.to_plain(found)  # a record with a NaN is refused, with all that was measured beside it
        assert found["base"]["difference"] == 0 and "seconds" in found["base"]
        assert all("NaN" in found[name]["unavailable"] for name in ("nan", "inf"))


def test_copies_exceed_the_cache_where_they_can():
    assert copies(10, 1000) == (64, False)
    assert copies(100, 1000) == (40, True)
    assert copies(10**9, 1000) == (2, True)


def test_bytes_of_the_kernels():
    shape = shape_of(load("labcoder", device="cpu").config)
    made = {
        (case.kernel, case.shape, case.tokens): case
        for case in bench_kernels.cases(shape, torch.bfloat16, CPU, (1, 3), (7,))
    }
    assert len(made) == 3 * 3 + 5 * 2
    norm = made["rms_norm", "+ residual, 512", 7]
    assert (
        norm.bytes == 2 * (7 * 512 * 4 + 512) and sum(each.nbytes for each in norm.fresh()) == norm.rotating
    )
    assert made["gated", "silu, 1152", 3].bytes == 2 * 3 * 1152 * 3
    rope = made["rope", "8 + 2·2 heads", 3]
    assert rope.bytes == 3 * 2 * 64 * (12 + 8 + 2 + 4 + 2) + 3 * 8
    down = made["linear", "down + residual", 3]
    assert down.bytes == 2 * (512 * 1152 + 3 * 1152 + 2 * 3 * 512)


def test_the_prompts_lie_in_shuffled_blocks_and_read_back_whole():
    inputs = bench_attention._inputs(2, 21, 4, 2, CPU, torch.float32, 0)
    query, pages, table, starts, visible, q, k, v = inputs
    assert starts.tolist() == [0, 21, 42] and visible.tolist() == [21, 21] and query.shape == (42, 4, 128)
    for row in range(2):
        keys = pages.keys[table[row].long()].flatten(0, 1)[:21]
        assert torch.equal(keys.transpose(0, 1), k[row])


def test_plans_differ_by_device():
    assert plan_for("cuda").compiling and not plan_for("cpu").compiling
    assert plan_for("cuda").load.requests == 256 and plan_for("cuda").prompts == (512, 2048)
    assert fuse_parts.plan_for("cuda").sizes == ((1, 2048), (1, 8192), (4, 1024))
