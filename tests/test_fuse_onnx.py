"""One layer in ONNX Runtime: the same numbers, fewer nodes; and a clear word where it is not installed."""

import importlib.util
import re
import sys

import pytest
import torch
from test_fuse import lm_of
from tiny_architectures import build

from labkit import fuse, paths
from labkit.errors import LabkitError
from labkit.fuse import onnx
from labkit.models import load

INSTALLED = all(importlib.util.find_spec(name) for name in ("onnx", "onnxruntime", "onnxscript"))
needs_onnx = pytest.mark.skipif(not INSTALLED, reason="the extra is not installed: pip install -e '.[onnx]'")


@needs_onnx
def test_a_layer_keeps_its_numbers_and_loses_nodes():
    lm = load("labcoder-draft", device="cpu")
    fuse.apply(lm)  # what is patched is not what is exported
    found = onnx.study(lm, tokens=19, layer=1, repeats=3)
    fuse.remove(lm)
    assert found.on.nodes < found.off.nodes and found.off.nodes > 50
    assert 0 <= found.off.difference < 1e-5 and 0 <= found.on.difference < 1e-5
    assert found.off.operators["MatMul"] >= 7 + 2  # seven weights, scores and values
    assert sum(found.changed.values()) == found.on.nodes - found.off.nodes
    assert len(found.torch.seconds) == len(found.on.seconds.seconds) == 3
    assert "nodes" in str(found) and "changed" in str(found)


@needs_onnx
def test_the_models_own_layer_is_left_alone():
    lm = load("labcoder-draft", device="cpu")
    before = {name: tensor.clone() for name, tensor in lm.model.state_dict().items()}
    attention = lm.config._attn_implementation
    onnx.study(lm, tokens=5, repeats=1)
    assert lm.config._attn_implementation == attention
    assert all(torch.equal(tensor, before[name]) for name, tensor in lm.model.state_dict().items())


@needs_onnx
@pytest.mark.parametrize("layer", [-1, 99])
def test_a_layer_that_is_none(layer):
    with pytest.raises(LabkitError, match="no layer"):
        onnx.study(load("labcoder-draft", device="cpu"), layer=layer)


@needs_onnx
def test_a_model_without_rotary_positions_is_refused():
    with pytest.raises(LabkitError, match="rotary"):
        onnx.study(lm_of(build("gpt2"), name="gpt2"))


@pytest.mark.parametrize("missing", ["onnx", "onnxruntime", "onnxscript"])
def test_without_the_extra_it_says_which_to_install(monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(LabkitError, match="not installed") as found:
        onnx.study(load("labcoder-draft", device="cpu"))
    assert "[onnx]" in found.value.remedy


def test_every_block_of_the_page_says_whether_it_ran():
    text = (paths.root() / "docs" / "handing_over.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```\w+\n(.*?)```", text, re.DOTALL)
    assert len(blocks) > 5
    assert all(block.startswith(("# run here", "# not run here")) for block in blocks)
