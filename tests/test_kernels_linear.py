"""Linear layers of a few tokens: the kernels through the interpreter, what the host decides, and the tuning file."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from labkit import results
from labkit.errors import LabkitError
from labkit.kernels import linear as room
from labkit.kernels import linear_tiling, tuning
from labkit.kernels.linear import linear, reference
from labkit.kernels.linear_tiling import Tiling, candidates, choose_splits, default_tiling, padded
from labkit.kernels.linear_tune import tune
from labkit.timing import compare

CASES = Path(__file__).with_name("linear_cases.py")
CPU = torch.device("cpu")
DRAWN = st.tuples(st.integers(1, 40000), st.integers(1, 30000))


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not made for this system")
def test_the_kernels_through_the_interpreter():
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", str(CASES), "-o", "addopts="]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=CASES.parents[1])
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    assert " passed" in done.stdout and "skipped" not in done.stdout


@pytest.mark.parametrize("tokens", [0, 1, 7, 40])
def test_a_cpu_multiplies_in_torch(tokens):
    x, weight = torch.randn(tokens, 30).double(), torch.randn(20, 30).double()
    bias, add = torch.randn(20).double(), torch.randn(tokens, 20).double()
    assert torch.equal(linear(x, weight), x @ weight.t())
    value = x @ weight.t() + bias
    exact = value * (1 + torch.erf(value / 2**0.5)) / 2
    bent = value * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (value + 0.044715 * value**3))) / 2
    for activation, wanted in ((None, value), ("gelu", exact), ("gelu_tanh", bent)):
        torch.testing.assert_close(linear(x, weight, bias, activation=activation), wanted)
        torch.testing.assert_close(
            linear(x, weight, bias, add=add, activation=activation, splits=3), wanted + add
        )


def test_only_what_the_kernels_know_goes_to_them(monkeypatch):
    monkeypatch.setattr(room, "available", lambda device: True)
    monkeypatch.setattr(room, "launch", lambda *arguments, **options: "launched")
    x, weight = torch.randn(16, 30), torch.randn(20, 30)
    assert linear(x, weight) == linear(x[:1], weight) == linear(x.half(), weight.half()) == "launched"
    many = torch.randn(room.SMALL + 1, 30)
    wanting = weight.clone().requires_grad_()
    others = [(many, weight), (x[:0], weight), (x.double(), weight.double()), (x, wanting),
              (x, weight.t().contiguous().t())]  # fmt: skip
    for arguments in others:
        assert torch.equal(linear(*arguments), reference(*arguments))
    with torch.no_grad():
        assert linear(x, wanting) == "launched"


def test_gradients_still_flow():
    x, weight = torch.randn(2, 30), torch.randn(20, 30, requires_grad=True)
    linear(x, weight).sum().backward()
    torch.testing.assert_close(weight.grad, x.sum(0).expand(20, 30))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"x": torch.randn(3, 29)}, "do not multiply"),
        ({"x": torch.randn(3, 30).half()}, "do not multiply"),
        ({"x": torch.randn(1, 3, 30)}, "do not multiply"),
        ({"bias": torch.randn(1)}, "bias"),
        ({"add": torch.randn(1, 20)}, "residual"),
        ({"activation": "relu"}, "relu"),
    ],
)
def test_what_does_not_fit_is_refused(change, match):
    arguments = {"x": torch.randn(3, 30), "weight": torch.randn(20, 30), **change}
    with pytest.raises(LabkitError, match=match):
        linear(**arguments)


@given(st.integers(1, 5000), st.integers(1, 400), st.integers(1, 200), st.integers(1, 8))
def test_shares_are_never_tiny_and_never_lose_by_the_estimate(blocks, steps, processors, least):
    splits = choose_splits(blocks, steps, processors, least=least, traffic=0.01)
    assert 1 <= splits <= linear_tiling.MOST_SPLITS
    assert splits == 1 or steps // splits >= 2
    if blocks % processors == 0 and blocks >= least * processors:
        assert splits == 1  # the GPU is full and comes out even
    if steps >= 2 * linear_tiling.MOST_SPLITS and blocks * linear_tiling.MOST_SPLITS <= processors:
        assert splits == linear_tiling.MOST_SPLITS  # more programs than this there cannot be


@pytest.mark.parametrize("tokens", [1, 16, 32])
@pytest.mark.parametrize("element", [2, 4])
@given(shape=DRAWN, processors=st.integers(1, 200))
def test_candidates_are_few_different_and_possible(tokens, element, shape, processors):
    found = candidates(*shape, tokens, element, processors)
    assert found[0] == default_tiling(*shape, tokens, element, processors)
    assert 1 <= len(found) <= 32 and len(set(found)) == len(found)
    for tiling in found:
        assert tiling.filled(shape[1]) == tiling.splits
        if tokens > 1:
            assert tiling.rows >= 16 and tiling.tile >= 16
            # of 227 KiB of a Hopper processor
            assert tiling.stages * tiling.tile * (tiling.rows + tokens) * element <= 200 * 1024


@given(k=st.integers(1, 5000), tile=st.sampled_from([1, 16, 128]), splits=st.integers(1, 50))
def test_every_share_has_a_tile(k, tile, splits):
    filled = Tiling(4, tile, 4, 1, splits).filled(k)
    steps = -(-k // tile)
    share = -(-steps // filled)
    assert 1 <= filled <= splits and (filled - 1) * share < steps <= filled * share


def test_tokens_are_padded_to_tiles():
    assert [padded(n) for n in (1, 2, 16, 17, 33)] == [1, 16, 16, 32, 64]


@pytest.mark.parametrize("wrong", [{"rows": 3}, {"tile": 0}, {"warps": 64}, {"stages": 0}, {"splits": 0}])
def test_no_tiling_of_impossible_numbers(wrong):
    with pytest.raises(LabkitError, match="no way to cut"):
        Tiling(**{"rows": 16, "tile": 16, "warps": 4, "stages": 1, **wrong})


@pytest.fixture
def home(monkeypatch, tmp_path):
    """An empty folder for tuning files; what was read before is forgotten, before and after."""
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    linear_tiling.forget()
    yield tmp_path
    linear_tiling.forget()


def test_without_a_file_there_are_defaults(home):
    assert tuning.look_up(CPU, "linear1", torch.float32, (40, 70)) is None
    tiling = linear_tiling.tiling_for(CPU, torch.float32, 40, 70, 1)
    assert tiling == default_tiling(40, 70, 1, 4, linear_tiling.processors(CPU))


def test_saved_entries_are_found_by_op_dtype_and_shape(home):
    one, two = Tiling(8, 128, 2, 1, 3), Tiling(16, 32, 4, 2)
    key = tuning.key("linear1", torch.bfloat16, (40, 70))
    target = tuning.save("CPU", {key: linear_tiling.entry(one, 1e-5)})
    assert target == home / "data" / "tuning" / "cpu.json"
    tuning.save("CPU", {tuning.key("linear16", torch.bfloat16, (40, 70)): linear_tiling.entry(two, 2e-5)})
    assert linear_tiling.tiling_for(CPU, torch.bfloat16, 40, 70, 1) == one
    assert linear_tiling.tiling_for(CPU, torch.bfloat16, 40, 70, 16) == two
    for dtype, shape in ((torch.float16, (40, 70)), (torch.bfloat16, (70, 40))):
        assert tuning.look_up(CPU, "linear1", dtype, shape) is None
    tuning.save("CPU", {key: linear_tiling.entry(two, 1e-6)})
    linear_tiling.forget()
    assert linear_tiling.tiling_for(CPU, torch.bfloat16, 40, 70, 1) == two
    written = json.loads(target.read_text())
    assert written["device"] == "CPU" and len(written["entries"]) == 2 and written["versions"]["torch"]


def test_devices_are_named_as_their_results_are():
    for name in ("NVIDIA H200", "NVIDIA GeForce RTX 4090", "CPU", "Tesla T4 (2)"):
        assert tuning.path(name).stem == results.slugify(name)


@pytest.mark.parametrize("text", ["{", "{}", "[]", '{"entries": {"a": 3}}', '{"entries": []}'])
def test_a_broken_file_says_so(home, text):
    target = tuning.path("CPU")
    target.parent.mkdir(parents=True)
    target.write_text(text)
    with pytest.raises(LabkitError, match="cpu.json"):
        tuning.look_up(CPU, "linear1", torch.float32, (40, 70))


@pytest.mark.parametrize(
    "entry", [{"rows": 3, "tile": 16, "warps": 4, "stages": 1}, {"rows": 4}, {"colour": 1}]
)
def test_a_broken_entry_says_so(home, entry):
    tuning.save("CPU", {tuning.key("linear1", torch.float32, (40, 70)): entry})
    with pytest.raises(LabkitError, match="no way to cut|no tiling"):
        linear_tiling.tiling_for(CPU, torch.float32, 40, 70, 1)


def test_shipped_files_hold_tilings():
    for file in tuning.path("x").parent.glob("*.json"):
        for key, entry in json.loads(file.read_text())["entries"].items():
            if key.startswith("linear"):
                assert Tiling(**{name: value for name, value in entry.items() if name != "seconds"})


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_an_impossible_time_chooses_nothing(seconds):
    class Took:
        median = seconds

    with pytest.raises(LabkitError, match="took"):
        tuning.fastest({"a": int}, CPU, lambda fns, *, device: dict.fromkeys(fns, Took()))


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter runs everywhere")
def test_a_cpu_is_not_tuned():
    with pytest.raises(LabkitError, match="does not compile for cpu"):
        tune([(40, 70)], torch.float32, "cpu", compare)
