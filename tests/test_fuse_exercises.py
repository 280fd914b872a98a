"""The exercises of 05_fuse: minutes, references against labkit's own, verdicts on planted mistakes, Triton absent."""

import importlib.util
import random
import runpy
from pathlib import Path

import pytest
import torch

from labkit.course import check, checks, exercises, no_triton
from labkit.course.exercise import CheckFailed, NotAttempted
from labkit.course.grading.session import Job, Session
from labkit.course.grading.verdict import PASSED, judge
from labkit.course.grading.workers import Workers
from labkit.course.scope import is_labkits_own
from labkit.course.verify import guarded, verify
from labkit.fuse.merge import Merged

EXERCISES = exercises.of("05_fuse")
ANSWERS = Path(__file__).parent / "answers" / "05_fuse"
KERNELS = ("silu_mul", "tile_attention")
triton_only = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")


def own(name):
    return exercises.find(name).reference


def test_core_path_fits_into_the_promised_minutes():
    assert sum(exercise.minutes for exercise in EXERCISES if exercise.level == "core") <= 25
    extra = {exercise.name for exercise in EXERCISES if exercise.level == "extra"}
    assert extra == {"norm_bytes", "tile_attention", "graph_step"}
    assert {exercise.name for exercise in EXERCISES if exercise.needs} == set(KERNELS)


def test_merged_weights_are_those_of_fuse():
    linears = [torch.nn.Linear(12, rows, bias=False) for rows in (24, 6, 6)]
    weight, sizes = own("merge_qkv")(*(linear.weight.detach() for linear in linears))
    assert torch.equal(weight, Merged(linears).weight) and sizes == [24, 6, 6]


def test_an_online_softmax_ends_where_the_plain_one_does():
    scores = 50 * torch.randn(4, 37, dtype=torch.float64)
    tops, totals = own("online_softmax")(scores, random.randint(1, 40))
    probabilities = (scores - tops[:, -1:]).exp() / totals[:, -1:]
    assert torch.allclose(probabilities, scores.softmax(-1))


@triton_only
def test_the_fused_norm_moves_what_the_kernel_moves():
    from labkit.course import interpreted
    from labkit.kernels.rms_norm_triton import rms_norm_kernel

    tokens, hidden = 1, random.randint(3, 30)  # one program, so the weight is read once
    x, add, normed, summed = (torch.randn(tokens, hidden) for _ in range(4))
    meta = {"HIDDEN": hidden, "BLOCK": 32, "OFFSET": 0.0, "WIDE": False, "PDL": False}
    arguments = (x, add, torch.ones(hidden), normed, summed, 1e-6)
    moved = interpreted.traffic(rms_norm_kernel, (tokens,), arguments, meta)
    assert moved.total == own("norm_bytes")(tokens, hidden, 4, True)


@triton_only
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_run_where_a_worker_starts_from_nothing(name):
    right, wrong = ((ANSWERS / name / f"{kind}.py").read_text("utf-8") for kind in RIGHT_AND_WRONG[name])
    with Workers(seconds=60, fork=False) as workers:
        assert judge(workers, exercises.find(name), Job(name, right)).status == PASSED
        with Session(workers, Job(name, wrong)) as session, pytest.raises(CheckFailed) as caught:
            verify(exercises.find(name), session.call, 7)
    assert caught.value.key == "outside" and "line " in caught.value.text


RIGHT_AND_WRONG = {
    "silu_mul": ("right_helper", "wrong_outside"),
    "tile_attention": ("right_base_2", "wrong_outside"),
}


@triton_only
@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_without_a_body_is_not_attempted(name, tmp_path):
    source = next((ANSWERS / name).glob("right_*.py")).read_text("utf-8")
    head, end = source.split("constexpr):\n")[0], "constexpr):\n    raise NotImplementedError()\n"
    stub = head + end
    path = tmp_path / "stub.py"
    path.write_text(stub, "utf-8")
    function = runpy.run_path(str(path))[name]
    with pytest.raises(NotAttempted):
        verify(exercises.find(name), guarded(function), 1)
    with Workers(seconds=20) as workers, Session(workers, Job(name, stub)) as session:
        with pytest.raises(NotAttempted):
            verify(exercises.find(name), session.call, 1)


@triton_only
def test_a_kernel_may_call_a_function_of_the_learners_other_cells():
    source = (ANSWERS / "silu_mul" / "right_helper.py").read_text("utf-8")
    helper = "@triton.jit\ndef silu(x):\n    return x / (1 + tl.exp(-x))\n"
    assert helper in source
    answer = source.replace(helper, "")
    job = Job("silu_mul", answer, ("import triton", "import triton.language as tl"), (helper,))
    with Workers(seconds=20) as workers:
        assert judge(workers, exercises.find("silu_mul"), job).status == PASSED


@triton_only
def test_labkits_own_kernel_is_no_answer():
    for name in KERNELS:
        assert is_labkits_own(own(name), own(name)) and is_labkits_own(own(name).kernel, own(name))
        with pytest.raises(CheckFailed, match="labkit's own"):
            getattr(check, name)(own(name).kernel)


def test_without_triton_a_kernel_is_open_and_never_passed(monkeypatch, capsys):
    there = importlib.util.find_spec

    def absent(name, *rest):
        return None if name == "triton" else there(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", absent)
    tl, triton = no_triton.tl, no_triton.triton

    @triton.jit
    def silu_mul(gate_up, out, COLUMNS: tl.constexpr, TILE: tl.constexpr):
        raise NotImplementedError

    assert not checks.available(frozenset({"triton"})) and checks.available(frozenset())
    check.silu_mul(silu_mul)
    said = capsys.readouterr().out
    assert said.splitlines() == [
        "– silu_mul: not checked here, it needs triton. It counts as open, not as passed."
    ]
    assert check.use("silu_mul", silu_mul) is own("silu_mul")
    assert triton.cdiv(7, 3) == 3 and triton.next_power_of_2(9) == 16


@triton_only
@pytest.mark.parametrize(
    ("name", "wrong", "mentions"),
    [
        ("silu_mul", "outside", "somebody else's memory"),
        ("silu_mul", "spilled", "a GPU promises no order"),
        ("silu_mul", "read_more", "loaded twice"),
        ("silu_mul", "half", ".to(tl.float32)"),
        ("silu_mul", "overflow", "gave nan."),
        ("silu_mul", "no_kernel", "@triton.jit"),
        ("tile_attention", "not_rescaled", "mixed * old"),
        ("tile_attention", "not_causal", "looked ahead"),
        ("online_softmax", "masked_nan", "which is NaN"),
        ("merge_qkv", "thirds", "grouped-query attention"),
        ("graph_step", "length_0", "softmax runs over nothing"),
        ("norm_bytes", "sum_not_written", "residual addition after the MLP"),
        ("speedup", "no_rest", "in none of them"),
    ],
)
def test_a_mistake_gets_its_own_verdict(name, wrong, mentions):
    function = runpy.run_path(str(ANSWERS / name / f"wrong_{wrong}.py"))[name]
    for _ in range(3):
        with pytest.raises(CheckFailed) as caught:
            verify(exercises.find(name), guarded(function), random.randrange(10**6))
        assert caught.value.key == wrong
        assert mentions in " ".join(caught.value.text.split())
