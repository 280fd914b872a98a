"""Quantised models: what they compute, alone, fused, in the engine and read back from disk; what is refused."""

import copy
import json

import pytest
import torch
from test_fuse import KNOWN, NAMES, equal, lm_of, only, run
from tiny_architectures import build
from tiny_models import tiny_llama

import labkit
from labkit import compress, fuse
from labkit.batch.build import engine_for
from labkit.batch.request import Request
from labkit.errors import LabkitError
from labkit.kernels.formats import Format
from labkit.models import LM, save
from labkit.models.linear import QuantizedLinear
from labkit.profile import Ceilings, cost_card

SCHEMES = ["int8", "int4", "fp8", "w8a8", Format("int4", 32), Format("int8", 16, symmetric=False)]


def dequantised(lm: LM, quantised: LM) -> LM:
    """The plain model with the weights that a quantised one stands for."""
    plain = copy.deepcopy(lm.model)
    for name, module in quantised.model.named_modules():
        if isinstance(module, QuantizedLinear):
            plain.get_submodule(name).weight.data = module.packed.dequantise(plain.dtype)
    return lm_of(plain)


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("name", KNOWN)
def test_it_computes_with_the_rounded_weights_fused_or_not(name, scheme):
    lm = lm_of(build(name))
    small = compress.quantize(lm, scheme)
    assert not any(isinstance(each, QuantizedLinear) for each in lm.model.modules())
    assert small.weight_bytes < lm.weight_bytes
    wanted = run(small.model)
    if scheme != "w8a8":
        equal(wanted, run(dequantised(lm, small).model))
    before = {key: value.clone() for key, value in small.model.state_dict().items()}
    for chosen in (NAMES, ("merge",), ("residual", "rope")):
        fuse.apply(small, **only(chosen))
        equal(run(small.model), wanted)
        fuse.remove(small)
    for key, value in small.model.state_dict().items():
        assert torch.equal(value, before[key]) and value.untyped_storage().nbytes() == value.nbytes


def test_fused_packed_weights_are_merged_or_say_why_not():
    lm = lm_of(build("llama"))
    report = fuse.apply(compress.quantize(lm, "int8"))
    assert "merge" in report.applied["model.layers.0"]
    mixed = compress.quantize(lm, "int8", plan={"model.layers.0.self_attn.k_proj": Format("int8", 16)})
    said = str(fuse.apply(mixed))
    assert "differ in format" in said
    whole = compress.quantize(lm, Format("int8", tensor=True))
    assert "one scale serves each whole matrix" in str(fuse.apply(whole))
    some = compress.quantize(lm, "int8", keep=["q_proj"])
    assert "only some of its projections are quantised" in str(fuse.apply(some))
    for each in (mixed, whole, some):
        wanted = run(dequantised(lm, each).model)
        equal(run(each.model), wanted)


def test_a_moved_or_replaced_packed_weight_is_noticed():
    small = compress.quantize(lm_of(build("llama")), "int4")
    fuse.apply(small)
    small.model.get_submodule("model.layers.0.mlp.down_proj").values = torch.zeros(3, dtype=torch.uint8)
    with pytest.raises(LabkitError, match="replaced after fuse.apply"):
        run(small.model)


@pytest.mark.parametrize("scheme", ["int8", "int4", "w8a8"])
def test_in_the_engine_it_says_what_it_says_alone(scheme):
    small = compress.quantize(lm_of(tiny_llama(dtype=torch.float64)), scheme)
    requests = [Request(prompt=[5 + i, 9, 4 * i + 1], max_tokens=9, ignore_eos=True) for i in range(4)]

    def answers(together):
        with engine_for(small, rows=4, blocks=64, graphs=True) as engine:
            groups = [requests] if together else [[request] for request in requests]
            return [ticket.first.tokens for group in groups for ticket in engine.run(group)]

    alone = answers(False)
    fuse.apply(small)
    assert answers(True) == alone


@pytest.mark.parametrize("name", ["llama", "gemma2", "qwen2"])
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_it_is_read_back_bit_for_bit(name, scheme, tmp_path):
    lm = lm_of(build(name).float())
    small = compress.quantize(lm, scheme, keep=["o_proj"])
    save(small, tmp_path / "small")
    again = labkit.load(str(tmp_path / "small"), device="cpu", dtype="float32")
    assert torch.equal(run(again.model), run(small.model)) and again.weight_bytes == small.weight_bytes
    kept = json.loads((tmp_path / "small" / "config.json").read_text())["quantization_config"]["modules"]
    assert not any(module.endswith("o_proj") for module in kept)
    save(again, tmp_path / "small")  # over itself
    assert torch.equal(run(labkit.load(str(tmp_path / "small"), device="cpu").model), run(small.model))


def test_a_damaged_checkpoint_is_refused(tmp_path):
    save(compress.quantize(lm_of(build("llama").float()), "int8"), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    modules = config["quantization_config"]["modules"]
    modules["model.layers.0.mlp.up_proj"]["group"] = 17
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(LabkitError, match="Groups of 17"):
        labkit.load(str(tmp_path), device="cpu")
    del modules["model.layers.0.mlp.up_proj"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(LabkitError, match="lacks 1 of its architecture's weights"):
        labkit.load(str(tmp_path), device="cpu")
    (tmp_path / "config.json").unlink()
    with pytest.raises(LabkitError, match="not empty"):
        save(lm_of(build("llama")), tmp_path)


def test_in_place_shares_nothing_and_frees_the_old_weights():
    lm = lm_of(build("llama"))
    weight = lm.model.get_submodule("model.layers.0.mlp.up_proj").weight
    assert compress.quantize(lm, "int8", in_place=True) is lm and "int8" in lm.name
    assert all(weight is not each for each in lm.model.parameters())


def test_the_cost_card_counts_packed_bytes():
    lm = lm_of(build("llama"))
    small = compress.quantize(lm, "int8")
    peaks = Ceilings(1e12, 1e14, "plain", "test", "float64")
    cards = [cost_card(each, peaks) for each in (lm, small)]
    saved = sum(each.weight.nbytes for each in compress.linears(lm).values())
    packed = sum(each.packed.nbytes for each in small.model.modules() if isinstance(each, QuantizedLinear))
    assert cards[0].weight_bytes_read - cards[1].weight_bytes_read == saved - packed


def test_an_input_scale_is_applied_first_and_gradients_reach_the_input():
    generator = torch.Generator().manual_seed(0)
    linear = torch.nn.Linear(40, 7, dtype=torch.float64)
    scale = torch.rand(40, generator=generator, dtype=torch.float64) + 0.5
    packed = compress.quantise(linear.weight.detach() / scale, Format("int8"))
    layer = QuantizedLinear(packed, linear.bias, input_scale=scale)
    x = torch.randn(2, 3, 40, generator=generator, dtype=torch.float64, requires_grad=True)
    out = layer(x)
    equal(out, (x * scale) @ packed.dequantise().T + linear.bias)
    out.sum().backward()
    equal(x.grad[0, 0], packed.dequantise().sum(0) * scale)


def test_what_cannot_be_is_refused():
    lm = lm_of(build("llama"))
    for arguments, said in (
        ({"scheme": "int3"}, "no scheme 'int3'"),
        ({"method": "magic"}, "no method 'magic'"),
        ({"keep": ["nothing_here"]}, "ends in 'nothing_here'"),
        ({"plan": {"model.layers.9.x": None}}, "no linear layer"),
    ):
        with pytest.raises(LabkitError, match=said):
            compress.quantize(lm, **arguments)
    small = compress.quantize(lm)
    with pytest.raises(LabkitError, match="quantised already"):
        compress.quantize(small)
    fuse.apply(lm)
    with pytest.raises(LabkitError, match="fused kernels"):
        compress.quantize(lm)
    fuse.remove(lm)
    with engine_for(lm, rows=2, blocks=8), pytest.raises(LabkitError, match="in an engine"):
        compress.quantize(lm)
    with pytest.raises(LabkitError, match="do not go with this weight"):
        QuantizedLinear(compress.quantise(torch.ones(4, 32), Format("int8", 16)), activations="int8")
