"""AWQ and SmoothQuant: scaling changes nothing in exact arithmetic, searching never makes it worse."""

import copy
from dataclasses import replace

import pytest
import torch
from test_compress_quantize import dequantised
from test_fuse import equal, lm_of, run
from tiny_architectures import MODELS, VOCAB, build
from tiny_models import tiny_llama

import labkit
from labkit import compress, fuse
from labkit.batch.build import engine_for
from labkit.batch.request import Request
from labkit.compress import awq, smooth
from labkit.compress.folding import folds
from labkit.compress.scaled import Fold, Scaled
from labkit.errors import LabkitError
from labkit.models import save
from labkit.models.linear import QuantizedLinear

F64 = torch.float64


def drawn(*shape, seed=0):
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


def seen_by(lm, seed=0):
    """A calibration on random tokens, fewer than any tiny model has positions."""
    ids = torch.randint(
        1, min(VOCAB, lm.config.vocab_size), (200,), generator=torch.Generator().manual_seed(seed)
    )
    return compress.calibrate(lm, ids)


def state(lm):
    return {name: value.clone() for name, value in lm.model.state_dict().items()}


def packed(lm):
    return {name: each for name, each in lm.model.named_modules() if isinstance(each, QuantizedLinear)}


@pytest.mark.parametrize("name", [name for name in MODELS if name != "gpt2"])
def test_folded_scales_change_nothing(name):
    lm = lm_of(build(name))
    before, wanted = state(lm), run(lm.model)
    found, target = Scaled(), replace(lm, model=compress.shared_copy(lm.model))
    for number, fold in enumerate(folds(lm)):
        columns = lm.model.get_submodule(fold.readers[0]).in_features
        if name != "olmo2" or "mlp.down" in fold.readers[0] or "o_proj" in fold.readers[0]:
            assert fold.producer, fold.readers  # olmo2 has no norm before its branches
        found.fold(lm, fold, fold.pooled(drawn(columns, seed=number).exp()))
    assert not list(found.carry_out(target, {}))
    after = target.model.state_dict()
    changed = {key for key in before if not torch.equal(after[key], before[key])}
    assert len(changed) >= 4 * (2 if name == "olmo2" else 4)
    equal(run(target.model), wanted, 1e-4 if "gemma" in name else 1e-9)  # its norms are float32 in any model
    assert all(torch.equal(value, before[key]) for key, value in lm.model.state_dict().items())


@pytest.mark.parametrize(
    ("name", "scheme", "method"),
    [("llama", "int8", "smoothquant"), ("qwen2", "int4", "awq"), ("qwen3", "int4", "awq"),
     ("gemma2", "int8", "smoothquant"), ("phi3", "int4", "awq")],
)  # fmt: skip
def test_the_model_computes_with_scaled_weights_and_the_original_stays(name, scheme, method):
    lm = lm_of(build(name))
    before, kept = state(lm), dict(lm.model.named_parameters())
    small = compress.quantize(lm, scheme, method=method, calibration=seen_by(lm))
    assert small.name == f"tiny ({scheme}, {method})" and packed(small)
    assert all(torch.equal(value, before[key]) for key, value in lm.model.state_dict().items())
    assert all(kept[key] is value for key, value in lm.model.named_parameters())
    wanted = dequantised(lm, small)
    for key, value in small.model.named_parameters():  # its norms and biases, for the same basis
        wanted.model.get_parameter(key).data = value.detach()
    equal(run(small.model), run(wanted.model))
    fuse.apply(small)
    equal(run(small.model), run(wanted.model))


def test_a_model_with_other_layers_is_refused():
    with pytest.raises(LabkitError, match="no linear layers"):
        compress.quantize(lm_of(build("gpt2")), "int4", method="awq")


def test_a_poor_calibration_is_refused_or_still_finite():
    lm = lm_of(build("llama"))
    for text, said in (
        ("", "0 tokens"), (torch.ones(5), "float32"), (torch.tensor([VOCAB]), "cannot calibrate"),
        (torch.tensor([-1]), "cannot calibrate"),
    ):  # fmt: skip
        with pytest.raises(LabkitError, match=said):
            compress.calibrate(lm, text)
    one = compress.calibrate(lm, torch.tensor([3]))
    for method in ("awq", "smoothquant"):
        assert bool(run(compress.quantize(lm, "int4", method=method, calibration=one).model).isfinite().all())
    with pytest.raises(LabkitError, match="no inputs of"):
        compress.quantize(lm, "int4", method="awq", calibration=seen_by(lm_of(build("phi3"))))
    broken = copy.deepcopy(lm)
    broken.model.get_submodule("model.layers.0.mlp.up_proj").weight.data[0] = float("nan")
    with pytest.raises(LabkitError, match="NaN"):
        seen_by(broken)


def test_a_calibration_is_what_the_layers_read():
    lm, inputs = lm_of(build("llama")), []
    name = "model.layers.1.mlp.down_proj"
    ids = torch.arange(1, 60)
    found = compress.calibrate(lm, ids, rows=20)
    layer = lm.model.get_submodule(name)
    handle = layer.register_forward_pre_hook(lambda _, args: inputs.append(args[0][0]))
    lm.model(ids[None], use_cache=False)
    handle.remove()
    equal(found[name].mean_abs, inputs[0].abs().mean(0))
    equal(found[name].max_abs, inputs[0].abs().amax(0))
    nearest = torch.cdist(found[name].rows, inputs[0]).argmin(1)
    assert len(set(nearest.tolist())) == 20
    equal(found[name].rows, inputs[0][nearest])
    assert tuple(f"model.layers.0.self_attn.{each}_proj" for each in "qkv") in found.groups()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("scheme", "method"), [("int4", "awq"), ("w8a8", "smoothquant")])
def test_input_scales_keep_the_dtype_and_are_read_back(scheme, method, dtype, tmp_path):
    lm = lm_of(build("olmo2", dtype))
    small = compress.quantize(lm, scheme, method=method, calibration=seen_by(lm))
    scaled = {name: each for name, each in packed(small).items() if each.input_scale is not None}
    assert scaled and {each.input_scale.dtype for each in scaled.values()} == {dtype}
    save(small, tmp_path)
    again = labkit.load(str(tmp_path), device="cpu", dtype=str(dtype).removeprefix("torch."))
    kept, found = state(small), state(again)
    assert kept.keys() == found.keys() and all(torch.equal(found[key], kept[key]) for key in kept)
    wanted = run(small.model)
    assert wanted.dtype == dtype and bool(wanted.isfinite().all())
    if dtype == torch.float32:  # a model that was cast as a whole has rotary frequencies in bfloat16 as well
        assert torch.equal(run(again.model), wanted)


def test_a_scale_is_undone_by_the_factor_as_it_is_stored():
    lm = lm_of(build("olmo2", torch.bfloat16))
    name = "model.layers.0.mlp.up_proj"
    found, linear = Scaled(), lm.model.get_submodule(name)
    found.fold(lm, Fold((name,)), drawn(48).exp().float())
    equal(found.weight(name, linear) * found.inputs[name].float(), linear.weight.float(), 1e-6)


def greedy(model, prompt, count):
    ids = torch.tensor([prompt])
    with torch.no_grad():
        for _ in range(count):
            ids = torch.cat([ids, model(ids, use_cache=False).logits[:, -1].argmax(-1, keepdim=True)], 1)
    return ids[0, len(prompt) :].tolist()


@pytest.mark.parametrize("folded", [True, False])
@pytest.mark.parametrize(("scheme", "method"), [("int4", "awq"), ("w8a8", "smoothquant")])
def test_in_the_engine_fused_it_says_what_it_says_eagerly(scheme, method, folded, monkeypatch):
    if not folded:
        for module in (awq, smooth):
            monkeypatch.setattr(module, "folds", lambda lm: [Fold(each.readers) for each in folds(lm)])
    lm = lm_of(tiny_llama(dtype=F64))
    small = compress.quantize(lm, scheme, method=method, calibration=seen_by(lm))
    assert any(each.input_scale is not None for each in packed(small).values()) is not folded
    prompts = [[5 + i, 9, 4 * i + 1] for i in range(3)]
    wanted = [greedy(small.model, prompt, 8) for prompt in prompts]
    report = fuse.apply(small)
    assert folded or "its input is scaled first" in str(report)
    with engine_for(small, rows=3, blocks=64, graphs=True) as engine:
        asked = [Request(prompt=prompt, max_tokens=8, ignore_eos=True) for prompt in prompts]
        assert [ticket.first.tokens for ticket in engine.run(asked)] == wanted


def test_in_place_calibrates_itself_and_leaves_no_old_weight():
    lm = lm_of(tiny_llama(num_hidden_layers=1))
    old = [each.weight for name, each in compress.linears(lm).items() if "o_proj" not in name]
    assert compress.quantize(lm, "int4", method="awq", in_place=True, keep=["o_proj"]) is lm
    assert lm.name == "tiny (int4, awq)" and len(packed(lm)) == 6
    assert not any(each is weight for each in lm.model.parameters() for weight in old)
