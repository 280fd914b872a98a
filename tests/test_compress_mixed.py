"""Which layer suffers, what to spend bytes on, what did the damage; bitsandbytes; the bench's part on quality."""

import itertools
import logging
import random
import sys
from dataclasses import replace

import pytest
import torch
from test_compress_methods import drawn, greedy, packed, seen_by, state
from test_fuse import equal, lm_of, run
from tiny_architectures import build
from tiny_models import tiny_llama

from labkit import compress
from labkit.batch import compress_quality
from labkit.batch.build import engine_for
from labkit.batch.request import Request
from labkit.compress.budget import greedy as greedy_plan
from labkit.compress.budget import total_damage
from labkit.compress.folding import folds
from labkit.compress.scaled import Scaled
from labkit.compress.sensitivity import Outputs, Sensitivity, batches
from labkit.errors import LabkitError
from labkit.kernels.formats import Format
from labkit.models.linear import QuantizedLinear

INT4 = Format("int4")
IDS = torch.arange(3, 150) * 7 % 97


MAKERS = {"gate_proj": "post_attention_layernorm", "o_proj": "self_attn.v_proj", "down_proj": "mlp.up_proj"}
ROWS, GROUPS = Format("int8"), Format("int8", 16)


def spoilt(lm, name):
    """A layer with an outlier in every row that meets zeros only: harmless, but it takes the grid from all others."""
    layer, _, last = name.rsplit(".", 2)
    with torch.no_grad():
        lm.model.get_submodule(f"{layer}.{MAKERS[last]}").weight[5] = 0
        weight = lm.model.get_submodule(name).weight
        weight[:, 5] = 300 * weight.abs().mean()
    return lm


@pytest.mark.parametrize("name", ["model.layers.1.mlp.gate_proj", "model.layers.2.self_attn.o_proj"])
def test_sensitivity_finds_the_planted_layer(name):
    lm = spoilt(lm_of(build("llama")), name)
    before = state(lm)
    found = compress.sensitivity(lm, (ROWS, GROUPS, None), IDS)
    assert max(found, key=lambda each: each.kl).module == name
    assert len(found) == 3 * len(compress.linears(lm))
    by = {(each.module, each.format): each for each in found}
    weight = lm.model.get_submodule(name).weight
    assert by[name, None] == Sensitivity(name, None, weight.nbytes, 0.0, 0.0)
    assert by[name, ROWS].bytes == compress.quantise(weight.detach(), ROWS).nbytes
    assert by[name, ROWS].kl > 1.5 * by[name, GROUPS].kl > 0
    assert all(torch.equal(value, before[key]) for key, value in lm.model.state_dict().items())
    alone = compress.quantize(lm, ROWS, keep=[each for each in compress.linears(lm) if each != name])
    kl, loss = Outputs(lm, batches(lm, IDS, 2048)).compare(alone)  # every layer run
    assert (by[name, ROWS].kl, by[name, ROWS].loss) == pytest.approx((kl, loss), rel=1e-4, abs=1e-7)


def test_a_failure_puts_the_weight_back():
    lm = lm_of(build("llama"))
    before = state(lm)
    with pytest.raises(LabkitError, match="too short"):
        compress.sensitivity(lm, (INT4,), torch.tensor([4]))
    clipped = compress.sensitivity(lm, (INT4,), IDS, calibration=seen_by(lm))
    plain = compress.sensitivity(lm, (INT4,), IDS)
    assert sum(each.kl for each in clipped) < sum(each.kl for each in plain)
    assert all(torch.equal(value, before[key]) for key, value in lm.model.state_dict().items())


@pytest.mark.parametrize("method", ["rtn", "awq"])
def test_damage_names_the_broken_part(method):
    lm = lm_of(build("llama"))
    name = "model.layers.2.mlp.up_proj"
    small = compress.quantize(lm, Format("int4", 16), method=method, calibration=seen_by(lm))
    before = state(lm), state(small)
    small.model.get_submodule(name).values.copy_(before[1][f"{name}.values"].roll(1, 0))
    found = compress.damage(lm, small, IDS)
    assert name.startswith(found[0].module) and (method == "awq" or found[0].module == name)
    assert found[0].kl > 1.5 * found[1].kl and (method == "awq" or len(found) == 28)
    assert [each.kl for each in found] == sorted((each.kl for each in found), reverse=True)
    assert not packed(lm) and all(torch.equal(value, before[0][key]) for key, value in state(lm).items())
    small.model.get_submodule(name).values.copy_(before[1][f"{name}.values"])
    again = {each.module: each.kl for each in compress.damage(lm, small, IDS)}
    assert again[found[0].module] < 0.5 * found[0].kl
    with pytest.raises(LabkitError, match="in one model only"):
        compress.damage(lm, lm_of(build("qwen3")), IDS)


def test_scales_inside_linear_layers_are_not_taken_for_damage():
    lm = lm_of(build("llama"))
    found, small = Scaled(), replace(lm, model=compress.shared_copy(lm.model))
    for number, fold in enumerate(folds(lm)):
        if fold.offset is None:  # v before o, up before down: no norm tells of these
            columns = lm.model.get_submodule(fold.readers[0]).in_features
            found.fold(lm, fold, fold.pooled(drawn(columns, seed=number).exp()))
    for name, weight, _ in found.carry_out(small, dict.fromkeys(compress.linears(lm), ROWS)):
        small.model.set_submodule(name, QuantizedLinear(weight))
    parts = compress.damage(lm, small, IDS)
    assert sorted(each.module for each in parts) == [f"model.layers.{number}" for number in range(4)]
    assert all(each.kl < 0.2 for each in parts)


def choices(seed):
    draw = random.Random(seed)
    return [
        Sensitivity(
            f"layer {layer}", Format("int8") if bits == 8 else Format("int4", 16 * bits), size, kl, kl
        )
        for layer in range(5)
        for bits, size, kl in (
            (bits, draw.randint(20, 60) * bits, draw.random() ** 3 / bits) for bits in (1, 2, 4, 8)
        )
    ]


@pytest.mark.parametrize("seed", range(8))
def test_allocate_is_the_best_plan_there_is(seed):
    options = choices(seed)
    by = {}
    for each in options:
        by.setdefault(each.module, []).append(each)
    least = sum(min(each.bytes for each in one) for one in by.values())
    most = sum(max(each.bytes for each in one) for one in by.values())
    for budget in (least, least + 37, (least + most) // 2, most, 2 * most):
        fitting = (
            plan for plan in itertools.product(*by.values()) if sum(each.bytes for each in plan) <= budget
        )
        best = min(sum(each.kl for each in plan) for plan in fitting)
        taken = {}
        for maker in (compress.allocate, greedy_plan):
            plan = maker(options, budget)
            chosen = {
                name: next(each for each in by[name] if each.format == made) for name, made in plan.items()
            }
            assert sum(each.bytes for each in chosen.values()) <= budget and len(chosen) == 5
            taken[maker] = total_damage(chosen)
        assert taken[compress.allocate] == pytest.approx(best)
        assert taken[greedy_plan] >= best - 1e-12
    with pytest.raises(LabkitError, match="more than a budget"):
        compress.allocate(options, least - 1)


def test_a_plan_is_what_quantize_makes_and_beats_one_format_for_all():
    name = "model.layers.1.mlp.down_proj"
    lm = spoilt(lm_of(build("llama")), name)
    measured = compress.sensitivity(lm, (INT4, ROWS, GROUPS), IDS)
    budget = sum(each.bytes for each in measured if each.format == ROWS)
    budget += sum(
        each.bytes * ((each.format == GROUPS) - (each.format == ROWS))
        for each in measured
        if each.module == name
    )
    plan = compress.allocate(measured, budget)
    assert plan[name] == GROUPS
    mixed = compress.quantize(lm, plan=plan)
    assert {key: each.format for key, each in packed(mixed).items()} == plan
    assert sum(each.packed.nbytes for each in packed(mixed).values()) <= budget
    outputs = Outputs(lm, batches(lm, IDS, 2048))
    assert outputs.compare(mixed)[0] < 0.8 * outputs.compare(compress.quantize(lm, ROWS))[0]


@pytest.mark.parametrize("kind", ["int8", "nf4"])
def test_bitsandbytes_own_layers_in_the_engine(kind, caplog):
    pytest.importorskip("bitsandbytes")
    lm = lm_of(tiny_llama(hidden_size=96, intermediate_size=128, vocab_size=97))
    before = state(lm)
    other = compress.bitsandbytes_model(lm, kind)
    assert other.name == f"tiny (bitsandbytes {kind})"
    layers = [each for each in other.model.modules() if type(each).__module__.startswith("bitsandbytes")]
    assert len(layers) == len(compress.linears(lm))
    prompts = [[5 + i, 9, 4 * i + 1] for i in range(3)]
    with caplog.at_level(logging.WARNING):
        close = (run(other.model) - run(lm.model)).norm() / run(lm.model).norm()
        with engine_for(other, rows=1, blocks=64) as engine:
            asked = [Request(prompt=prompt, max_tokens=6, ignore_eos=True) for prompt in prompts]
            said = [ticket.first.tokens for request in asked for ticket in engine.run([request])]
    assert 0 < close < (0.05 if kind == "int8" else 0.3)
    assert not caplog.records
    assert said == [greedy(other.model, prompt, 6) for prompt in prompts]
    assert all(torch.equal(value, before[key]) for key, value in lm.model.state_dict().items())


def test_bitsandbytes_refusals(monkeypatch):
    lm = lm_of(tiny_llama())
    with pytest.raises(LabkitError, match="no 'int3'"):
        compress.bitsandbytes_model(lm, "int3")
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(LabkitError, match="not installed"):
        compress.bitsandbytes_model(lm)


def test_the_benchs_part_on_quality_measures_every_method(monkeypatch, capsys):
    monkeypatch.setattr(compress_quality, "load", lambda *_, **__: lm_of(tiny_llama(num_hidden_layers=1)))
    monkeypatch.setattr(
        compress_quality,
        "calibrate",
        lambda lm, ids=None: compress.calibrate(lm, IDS if ids is None else ids),
    )
    monkeypatch.setattr(compress_quality, "sensitivity", lambda lm, made: compress.sensitivity(lm, made, IDS))
    found = compress_quality.quality("cpu", ("fixed",), 3000)
    methods = found["methods"]
    missing = {name for name, one in methods.items() if "unavailable" in one}
    assert missing <= {"bitsandbytes int8", "bitsandbytes nf4"} and len(methods) == 18
    for name in methods.keys() - missing:
        one = methods[name]
        rise = one["perplexity"] / methods["float32"]["perplexity"] - 1
        assert one["perplexity_change"].mean == pytest.approx(rise, abs=1e-6), name
        assert one["kl"].low <= one["kl"].mean <= one["kl"].high and one["kl"].mean >= -1e-9
        assert one["top1"].mean <= 1
        assert name == "float32" or one["weight_bytes"] < methods["float32"]["weight_bytes"]
    for group in (64, 32):
        assert (
            methods[f"mixed, bytes of g{group}"]["weight_bytes"] <= methods[f"int4 g{group}"]["weight_bytes"]
        )
    assert methods["int4 g128"]["kl"].mean > methods["int8"]["kl"].mean > 0
    assert len(capsys.readouterr().out.splitlines()) == 19


def test_shared_parts_of_two_models_do_not_change_each_other():
    lm = lm_of(build("gemma2"))
    wanted = run(lm.model)
    for method in ("awq", "smoothquant"):
        small = replace(compress.quantize(lm, "int8", method=method, calibration=seen_by(lm)))
        for each in small.model.parameters():
            if all(each is not own for own in lm.model.parameters()):
                each.data.zero_()
    equal(run(lm.model), wanted, 0)
