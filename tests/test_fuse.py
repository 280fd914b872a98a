"""Fused layers equal the model's own, part by part and together; what is not recognised stays, and all comes off."""

import copy
import functools
import weakref

import pytest
import torch
from test_cache_attention import Kitchen
from tiny_architectures import MODELS, VOCAB, Store, build
from tiny_models import tiny_llama, tiny_tokenizer
from torch import nn
from transformers import AutoModelForCausalLM, GraniteConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.llama import modeling_llama
from transformers.models.llama.modeling_llama import (
    ALL_ATTENTION_FUNCTIONS,
    apply_rotary_pos_emb,
    eager_attention_forward,
)

from labkit import fuse
from labkit.batch.build import engine_for
from labkit.batch.request import Request
from labkit.cache import Chunk, PagedCache, Recompute, forward, install, remove
from labkit.errors import LabkitError
from labkit.fuse import applied, merge, operations, shapes
from labkit.fuse import layer as fused_layer
from labkit.fuse.match import match
from labkit.kernels.layout import Layout
from labkit.models import LM

UNKNOWN = ("gpt2", "olmo2")
KNOWN = [name for name in MODELS if name not in UNKNOWN]
NAMES = tuple(fuse.parts())
ALONE = [(name,) for name in NAMES]
ALL_BUT_ONE = [tuple(set(NAMES) - {name}) for name in NAMES]


def lm_of(model, name="tiny"):
    return LM(model, tiny_tokenizer(), name, torch.device("cpu"), model.dtype)


def only(chosen):
    return {name: name in chosen for name in NAMES}


def run(model, seed=0, lengths=(1, 5, 33, 14), **settings):
    """Logits of random pieces of random rows."""
    install(model)
    try:
        kitchen = Kitchen(model, list(lengths), settings.pop("block_size", 3), seed=seed, **settings)
        kitchen.run()
    finally:
        remove(model)
    return torch.cat(kitchen.logits)


@pytest.fixture
def fused_steps(monkeypatch):
    """How many layers ran fused."""
    calls, plain, check = [], fused_layer.FusedLayer._run, applied.check
    monkeypatch.setattr(
        fused_layer.FusedLayer, "_run", lambda self, *args: calls.append(self.index) or plain(self, *args)
    )
    monkeypatch.setattr(applied, "check", lambda plan: (check(plan), calls.clear()))  # not those of the test
    return calls


def equal(found, wanted, tolerance=1e-9):
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)


@pytest.fixture(autouse=True)
def with_the_chunk_kernel(monkeypatch):
    """Chunks go the way they go on a GPU, with the kernel's reference; and the MLP in tiles of a CPU."""
    monkeypatch.setattr(operations, "available", lambda device: True)
    monkeypatch.setattr(fused_layer, "CPU_TILE", 23)


@pytest.mark.parametrize("name", KNOWN)
def test_every_part_alone_and_all_together_equal_the_model(name, fused_steps):
    model = build(name)
    lm, wanted = lm_of(model), run(model)
    for chosen in [NAMES, *ALONE, *(ALL_BUT_ONE if name in ("qwen3", "gemma2") else ())]:
        report = fuse.apply(lm, **only(chosen))
        assert {part for parts in report.applied.values() for part in parts} <= set(chosen)
        fused_steps.clear()
        equal(run(model), wanted)
        assert set(fused_steps) == {0, 1, 2, 3}, chosen
    fuse.remove(lm)
    fused_steps.clear()
    assert torch.equal(run(model), wanted) and not fused_steps


@pytest.mark.parametrize("name", KNOWN)
def test_the_report_names_every_part(name):
    report = fuse.apply(lm_of(build(name)))
    unfit = {"phi3": {"merge"}, "phi3 window": {"merge"}, "gemma2": {"residual"}, "gemma3": {"residual"}}
    missing = unfit.get(name, set())
    layers = [parts for module, parts in report.applied.items() if ".layers." in module]
    assert len(layers) == 4 and all(set(parts) == set(NAMES) - missing for parts in layers)
    assert report.applied["model.norm"] == ("norm",) and report.applied["lm_head"] == ("linear",)
    assert {kept.part for kept in report.kept} == missing
    assert "model.layers.*" in str(report) and "×4" in str(report)


@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown_layers_stay_and_say_why(name, fused_steps):
    model = build(name)
    wanted = run(model)
    report = fuse.apply(lm_of(model))
    assert not report.applied and len(report.kept) == 4
    assert all("none that labkit knows" in kept.reason for kept in report.kept)
    assert torch.equal(run(model), wanted) and not fused_steps


@pytest.mark.parametrize(
    "kind, changes",
    [
        ("gemma", {"hidden_activation": "gelu_pytorch_tanh"}),
        ("gemma", {"hidden_act": "gelu", "hidden_activation": "gelu"}),
        (
            "phi3",
            {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
        ),
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("llama", {"num_key_value_heads": 6, "head_dim": 16}),
        ("qwen3", {"attention_bias": True, "head_dim": 20}),
        ("mistral", {"num_key_value_heads": 1, "sliding_window": None}),
    ],
)
def test_other_settings(kind, changes, fused_steps):
    settings = {"vocab_size": VOCAB, "hidden_size": 48, "intermediate_size": 56, "num_hidden_layers": 2,
                "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0}  # fmt: skip
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[kind](**{**settings, **changes})).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(0.5, 0.3) if weight.ndim == 1 else weight.normal_(
                0, 1.5 * weight.shape[-1] ** -0.5
            )
    wanted = run(model)
    report = fuse.apply(lm_of(model))
    assert len([1 for module in report.applied if ".layers." in module]) == 2, str(report)
    equal(run(model), wanted)
    assert fused_steps


def test_int8_pages_and_no_pages(fused_steps):
    model = build("qwen3")
    lm, wanted = lm_of(model), run(model, quantised=True)
    fuse.apply(lm)
    equal(run(model, quantised=True), wanted, 1e-5)  # scales are float32
    lengths, ids = (1, 12, 1, 31), torch.randint(0, VOCAB, (1, 45))
    positions = torch.cat([torch.arange(n) for n in lengths])[None]
    step = {
        "input_ids": ids,
        "position_ids": positions,
        "use_cache": False,
        "kv": Store(Layout(0, lengths, lengths), None),
    }
    install(model)
    with torch.no_grad():
        fused_steps.clear()
        found = model(**step).logits
        assert fused_steps
        fuse.remove(lm)
        equal(found, model(**step).logits)
    remove(model)


def test_without_the_chunk_kernel(monkeypatch, fused_steps):
    monkeypatch.setattr(operations, "available", lambda device: False)
    monkeypatch.setattr(operations, "varlen_attention", None)
    model = build("gemma3")
    wanted = run(model)
    fuse.apply(lm_of(model))
    equal(run(model), wanted)
    assert fused_steps


def test_packs_of_a_cache_and_logits_of_some_positions():
    lm = lm_of(tiny_llama(2, torch.float64))
    ids = torch.randint(1, 384, (40,)).tolist()
    found = {}
    for fused in (False, True):
        if fused:
            fuse.apply(lm)
        install(lm.model)
        for make in (lambda: PagedCache(lm, 40, 4), lambda: Recompute(lm)):
            cache = make()
            with torch.inference_mode():
                cache.open(0, ids), cache.open(1, ids[:7])
                first = forward(lm, cache.pack([Chunk(0, 0, ids[:30], 2), Chunk(1, 0, ids[:7])]))
                cache.commit(0, ids[:30]), cache.commit(1, ids[:7])
                rest = [Chunk(1, 7, ids[7:8]), Chunk(0, 30, ids[30:], 3)]
                second = forward(lm, cache.pack(rest)) if isinstance(cache, PagedCache) else first
            found.setdefault(type(cache).__name__, []).append(torch.cat((first, second)))
        remove(lm.model)
    for plain, fused in found.values():
        equal(fused, plain)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-4), (torch.bfloat16, 0.06)])
def test_other_dtypes(dtype, tolerance):
    model = build("gemma3", dtype)
    wanted = run(model)
    fuse.apply(lm_of(model))
    found = run(model)
    assert found.isfinite().all()
    assert (found - wanted).abs().max() <= tolerance * wanted.abs().max()


def test_merged_weights_own_the_memory_and_removing_gives_it_back():
    model = build("qwen2")
    lm = lm_of(model)
    size, before = lm.weight_bytes, copy.deepcopy(model.state_dict())
    parameters, modules = dict(model.named_parameters()), dict(model.named_modules())
    vars_before = {name: set(vars(module)) for name, module in modules.items()}
    fuse.apply(lm)
    attention, mlp = model.model.layers[1].self_attn, model.model.layers[1].mlp
    storage = {
        x.weight.untyped_storage().data_ptr() for x in (attention.q_proj, attention.k_proj, attention.v_proj)
    }
    assert len(storage) == 1 and storage != {mlp.up_proj.weight.untyped_storage().data_ptr()}
    assert (
        attention.q_proj.bias.untyped_storage().data_ptr()
        == attention.v_proj.bias.untyped_storage().data_ptr()
    )
    assert lm.weight_bytes == size
    fuse.apply(lm)  # again: the first is undone, nothing is stored twice
    assert lm.weight_bytes == size
    fuse.remove(lm), fuse.remove(lm)
    assert lm.weight_bytes == size and "_labkit_fuse" not in vars(model)
    assert dict(model.named_modules()) == modules
    assert {name: set(vars(module)) for name, module in modules.items()} == vars_before
    assert not model._forward_pre_hooks and not model._forward_hooks
    after = dict(model.named_parameters())
    assert list(after) == list(parameters) and all(after[name] is parameters[name] for name in after)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    storages = [parameter.untyped_storage() for parameter in after.values()]
    assert len({each.data_ptr() for each in storages}) == len(storages)
    assert all(s.nbytes() == p.nbytes for s, p in zip(storages, after.values(), strict=True))


def test_generate_and_training_run_the_models_own_code(monkeypatch, fused_steps):
    kernels, plain = [], operations.linear
    monkeypatch.setattr(
        operations, "linear", lambda *args, **options: kernels.append(1) or plain(*args, **options)
    )
    model = tiny_llama(1, torch.float64, vocab_size=VOCAB)
    lm, ids = lm_of(model), torch.randint(1, VOCAB, (2, 9))
    mask = torch.ones_like(ids)
    wanted = model(ids).logits
    tokens = model.generate(ids, attention_mask=mask, max_new_tokens=6, do_sample=False, pad_token_id=0)
    fuse.apply(lm, merge=False)
    assert torch.equal(model(ids).logits, wanted)
    fuse.apply(lm)
    equal(model(ids).logits, wanted)
    kernels.clear()  # the test of the layers runs them
    again = model.generate(ids, attention_mask=mask, max_new_tokens=6, do_sample=False, pad_token_id=0)
    assert torch.equal(again, tokens) and not fused_steps and not kernels
    twin = tiny_llama(1, torch.float64, vocab_size=VOCAB)
    for each in (model, twin):  # an optimiser's step through the views reaches the merged weights
        optimiser = torch.optim.AdamW(each.parameters(), lr=0.02)
        each(ids, labels=ids).loss.backward()
        optimiser.step()
    wanted = run(twin)
    assert not fused_steps and not kernels and (run(model) - wanted).abs().max() <= 1e-9
    assert (
        fused_steps
        and len(kernels) > 4 * len(fused_steps)
        and (wanted - run(tiny_llama(1, torch.float64, vocab_size=VOCAB))).abs().max() > 0.1
    )


def test_weights_are_loaded_and_saved_through_the_views(tmp_path):
    model, other = build("qwen2"), build("qwen2")
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(0.9)
    fuse.apply(lm_of(model))
    model.load_state_dict(other.state_dict())
    equal(run(model), run(other))
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float64).eval()
    assert all(torch.equal(again.state_dict()[key], value) for key, value in other.state_dict().items())


def test_modules_outside_the_layers_are_fused_in_packed_steps_only(monkeypatch):
    model, kernels, plain = tiny_llama(1, torch.float64, vocab_size=VOCAB), [], operations.rms_norm
    fuse.apply(lm_of(model))
    monkeypatch.setattr(
        operations, "rms_norm", lambda *args, **options: kernels.append(1) or plain(*args, **options)
    )
    run(model, lengths=(3,))
    assert kernels
    install(model)
    with torch.no_grad(), pytest.raises(AttributeError):
        model(
            input_ids=torch.ones(1, 3).long(),
            position_ids=torch.arange(3)[None],
            use_cache=False,
            kv=Store(None, None),
        )
    remove(model), kernels.clear()
    with torch.no_grad():
        model.model.norm(torch.randn(1, 3, 48).double())
    assert not kernels


def test_packed_steps_in_training_and_for_gradients_run_the_models_own_code(fused_steps):
    model = tiny_llama(1, torch.float64)
    step = {"input_ids": torch.randint(1, 384, (1, 9)), "position_ids": torch.arange(9)[None], "use_cache": False,
            "kv": Store(Layout(0, (9,), (9,)), None)}  # fmt: skip
    fuse.apply(lm_of(model))
    install(model)
    model(**step).logits.square().sum().backward()
    with torch.no_grad():
        model.train()(**step)
        assert not fused_steps
        model.eval()(**step)
    remove(model)
    assert len(fused_steps) == 2
    assert model.model.layers[0].self_attn.q_proj.weight.grad.abs().max() > 0


@pytest.mark.parametrize("case", range(3))
def test_the_engine_gives_the_same_tokens(case, fused_steps):
    lm = lm_of(tiny_llama(case, torch.float64, num_key_value_heads=(1, 2, 6)[case]))
    torch.manual_seed(case)
    texts = [torch.randint(1, 384, (n,)).tolist() for n in (3, 41, 17, 26, 1)]
    asked = [Request(prompt=text, max_tokens=7 + n, ignore_eos=True) for n, text in enumerate(texts)]
    settings = {"blocks": 14, "block_size": 4, "rows": 4, "step_tokens": 13, "share": False}

    def tokens():
        with engine_for(lm, **settings) as engine:
            tickets = engine.run(asked)
            return [ticket.first.tokens for ticket in tickets], sum(ticket.preemptions for ticket in tickets)

    wanted = tokens()
    for chosen in (NAMES, ("attention", "rope"), ("merge", "gated")):
        fuse.apply(lm, **only(chosen))
        assert tokens() == wanted and fused_steps
    with engine_for(lm, **settings) as engine:  # on and off while an engine holds the model's attention
        fuse.remove(lm)
        first = engine.run(asked[:2])
        fuse.apply(lm)
        second = engine.run(asked[2:])
    assert [ticket.first.tokens for ticket in first + second] == wanted[0] and wanted[1] > 0


class Quantised(nn.Module):
    """Stands for a layer whose weight is packed."""

    def __init__(self, plain):
        super().__init__()
        self.in_features, self.out_features, self.plain = plain.in_features, plain.out_features, plain

    def forward(self, x):
        return self.plain(x).round(decimals=6)


class Lora(nn.Linear):
    """A subclass with a forward of its own."""

    def forward(self, x):
        return super().forward(x) + 0.1 * super().forward(x.flip(-1))


def wrapped(linear, kind=Quantised):
    if kind is Quantised:
        return Quantised(linear)
    new = Lora(linear.in_features, linear.out_features, bias=False, dtype=linear.weight.dtype)
    new.weight = linear.weight
    return new


@pytest.mark.parametrize("kind", [Quantised, Lora])
@pytest.mark.parametrize("where", ["self_attn.k_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.down_proj"])
def test_a_strange_linear_layer_is_called_as_it_is(kind, where, fused_steps):
    model = build("llama")
    parent, name = where.split(".")
    for layer in model.model.layers[1:3]:
        module = getattr(layer, parent)
        setattr(module, name, wrapped(getattr(module, name), kind))
    wanted = run(model)
    report = fuse.apply(lm_of(model))
    assert len(report.applied) == 6
    kept = [each for each in report.kept if each.module == f"model.layers.1.{where}"]
    assert [each.part for each in kept] == ["linear"] and kind.__name__ in kept[0].reason
    merges = ("merge" in report.applied["model.layers.1"], "merge" in report.applied["model.layers.0"])
    assert merges == (True, True) and any(each.part == "merge" for each in report.kept) == (name[0] in "kg")
    equal(run(model), wanted)
    assert set(fused_steps) == {0, 1, 2, 3}


def test_a_weight_that_is_not_contiguous_says_so():
    model = build("llama")
    linear = model.model.layers[1].mlp.down_proj
    linear.weight = nn.Parameter(linear.weight.detach().T.contiguous().T)
    kept = fuse.apply(lm_of(model)).kept
    assert [each.reason for each in kept] == ["its weight is not contiguous in memory"]


def test_random_numbers_go_on_as_if_nothing_had_been_applied():
    model = build("llama")
    model.model.layers[1].mlp.up_proj = wrapped(model.model.layers[1].mlp.up_proj)  # its stand-in is drawn
    before = torch.get_rng_state()
    fuse.apply(lm_of(model))
    assert torch.equal(torch.get_rng_state(), before)


def test_hooks_keep_running(fused_steps):
    model, seen = build("gemma2"), []
    lm, wanted = lm_of(model), run(model)
    layers = model.model.layers
    layers[0].self_attn.register_forward_hook(lambda *_: seen.append("attention"))
    layers[1].mlp.up_proj.register_forward_pre_hook(lambda *_: seen.append("up"))
    layers[2].post_feedforward_layernorm.register_forward_hook(lambda *_: seen.append("norm"))
    layers[3].register_forward_hook(lambda *_: seen.append("layer"))
    report = fuse.apply(lm)
    assert "model.layers.0" not in report.applied
    assert {(each.module, each.part) for each in report.kept if "hooks" in each.reason} == {
        ("model.layers.0", ""), ("model.layers.1.mlp.up_proj", "linear"), ("model.layers.1.mlp", "merge"),
        ("model.layers.2.post_feedforward_layernorm", "norm"),
    }  # fmt: skip
    late = layers[3].self_attn.q_proj.register_forward_hook(lambda *_: seen.append("late"))
    equal(run(model), wanted)
    assert set(seen) == {"attention", "up", "norm", "layer", "late"} and set(fused_steps) == {1, 2}
    late.remove()
    equal(run(model), wanted)
    assert set(fused_steps) == {1, 2, 3}


def test_hooks_that_transformers_leaves_behind_do_not_count(fused_steps):
    model = tiny_llama(0, torch.float64, vocab_size=VOCAB)
    lm, wanted = lm_of(model), run(model)
    fuse.apply(lm)
    model(torch.tensor([[1, 2, 3]]), output_hidden_states=True)
    equal(run(model), wanted)
    assert set(fused_steps) == {0, 1}
    assert "model.layers.0" in fuse.apply(lm).applied


def test_what_changes_after_apply_is_noticed():
    def changed(change):
        model = build("llama")
        fuse.apply(lm_of(model))
        change(model)
        return model

    layer = "model.layers.2.mlp."
    for change, message in (
        (
            lambda m: setattr(
                m.get_submodule(layer[:-1]), "up_proj", wrapped(m.get_submodule(layer + "up_proj"))
            ),
            "replaced",
        ),
        (lambda m: setattr(m.model.norm, "weight", nn.Parameter(torch.ones(48).double())), "replaced"),
        (lambda m: setattr(m.get_submodule(layer + "act_fn"), "forward", torch.zeros_like), "replaced"),
        (lambda m: m.float(), "moved, converted or copied"),
    ):
        model = changed(change)
        with pytest.raises(LabkitError, match=message):
            run(model)
        fuse.remove(lm_of(model))
        assert run(model).isfinite().all()


def test_a_model_that_was_moved_is_noticed_without_merged_weights_too(monkeypatch):
    model = build("llama")
    fuse.apply(lm_of(model), merge=False)
    monkeypatch.setattr(
        type(model), "device", torch.device("cuda", 1)
    )  # whose kernels need counters of their own
    with torch.no_grad(), pytest.raises(LabkitError, match="moved"):
        model(input_ids=torch.ones(1, 3, dtype=torch.long), kv=Store(None, None))


class Windowed(modeling_llama.LlamaAttention):
    """Takes its window from the call."""

    # fmt: off
    def forward(self, hidden_states, position_embeddings=None, attention_mask=None, past_key_values=None, window=4,
                **kwargs):
        input_shape = hidden_states.shape[:-1]
        hidden_shape = (*input_shape, -1, self.head_dim)
        query_states = self.q_proj(hidden_states).view(hidden_shape).transpose(1, 2)
        key_states = self.k_proj(hidden_states).view(hidden_shape).transpose(1, 2)
        value_states = self.v_proj(hidden_states).view(hidden_shape).transpose(1, 2)
        cos, sin = position_embeddings
        query_states, key_states = apply_rotary_pos_emb(query_states, key_states, cos, sin)
        if past_key_values is not None:
            key_states, value_states = past_key_values.update(key_states, value_states, self.layer_idx)
        attention_interface = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward)
        attn_output, attn_weights = attention_interface(
            self, query_states, key_states, value_states, attention_mask, scaling=self.scaling,
            sliding_window=window, **kwargs)
        attn_output = attn_output.reshape(*input_shape, -1).contiguous()
        attn_output = self.o_proj(attn_output)
        return attn_output, attn_weights
    # fmt: on


def test_a_term_that_depends_on_the_call_leaves_the_layer_alone(fused_steps):
    model = build("llama")
    model.model.layers[2].self_attn.__class__ = Windowed
    wanted = run(model)
    kept = fuse.apply(lm_of(model)).kept
    assert [(each.module, each.part) for each in kept] == [("model.layers.2", "")]
    assert "sliding_window = window" in kept[0].reason
    equal(run(model), wanted)
    assert set(fused_steps) == {0, 1, 3}


def test_tied_and_uneven_projections_are_not_merged(fused_steps):
    model = build("llama")
    layers = model.model.layers
    layers[0].self_attn.k_proj.weight = layers[0].self_attn.v_proj.weight
    layers[1].mlp.gate_proj.weight = layers[2].mlp.gate_proj.weight
    layers[3].self_attn.k_proj.bias = nn.Parameter(torch.randn(16).double())
    wanted = run(model)
    report = fuse.apply(lm_of(model))
    kept = {each.module: each.reason for each in report.kept}
    assert kept.keys() == {
        "model.layers.0.self_attn", "model.layers.1.mlp", "model.layers.2.mlp", "model.layers.3.self_attn"
    }  # fmt: skip
    assert "share" in kept["model.layers.1.mlp"] and "bias" in kept["model.layers.3.self_attn"]
    equal(run(model), wanted)
    assert set(fused_steps) == {0, 1, 2, 3}


def test_pieces_that_are_not_known_run_as_they_are(monkeypatch, fused_steps):
    model = build("qwen3")
    model.model.layers[0].mlp.act_fn = nn.Mish()
    model.model.layers[1].self_attn.q_norm = nn.LayerNorm(8).double()
    wanted = run(model)
    kept = {(each.module, each.part) for each in fuse.apply(lm_of(model)).kept}
    assert kept == {("model.layers.0.mlp.act_fn", "gated"), ("model.layers.1.self_attn.q_norm", "rope")}
    equal(run(model), wanted)

    def turned(q, k, cos, sin, unsqueeze_dim=1):
        return q * cos[:, None] - q.flip(-1) * sin[:, None], k * cos[:, None] - k.flip(-1) * sin[:, None]

    monkeypatch.setitem(
        type(model.model.layers[0].self_attn).forward.__globals__, "apply_rotary_pos_emb", turned
    )
    fuse.remove(lm_of(model))
    wanted = run(model)
    report = fuse.apply(lm_of(model))
    assert [each.part for each in report.kept].count("rope") == 4 and "rotary" in str(report)
    equal(run(model), wanted)
    assert len(set(fused_steps)) == 4


def test_a_forward_that_differs_is_left_alone():
    # fmt: off
    config = GraniteConfig(vocab_size=VOCAB, hidden_size=48, intermediate_size=64, num_hidden_layers=2,
                           num_attention_heads=6, num_key_value_heads=2, residual_multiplier=0.3, pad_token_id=0)
    # fmt: on
    report = fuse.apply(lm_of(AutoModelForCausalLM.from_config(config).eval()))
    assert not report.applied and "GraniteDecoderLayer" in str(report)

    model = build("llama")
    kind = type(model.model.layers[0])

    class Scaled(kind):
        def forward(self, hidden_states, **context):
            return 0.5 * super().forward(hidden_states, **context)

    model.model.layers[1].__class__ = Scaled
    model.model.layers[2].forward = lambda *args, **context: kind.forward(
        model.model.layers[2], *args, **context
    )
    wanted = run(model)
    report = fuse.apply(lm_of(model))
    assert [name for name in report.applied if "layers" in name] == ["model.layers.0", "model.layers.3"]
    assert "Scaled" in str(report) and "its forward was replaced" in str(report)
    equal(run(model), wanted)
    fuse.remove(lm_of(model))
    assert "forward" in vars(model.model.layers[2])


def test_a_norm_of_another_unit_is_called_as_it_is(fused_steps):
    model = build("gemma2")
    norm = model.model.layers[1].pre_feedforward_layernorm

    class Other(type(norm)):
        def _norm(self, x):
            return x / x.norm(dim=-1, keepdim=True)

    norm.__class__ = Other
    wanted = run(model)
    kept = [(each.module, each.part) for each in fuse.apply(lm_of(model)).kept if "_norm" in each.reason]
    assert kept == [("model.layers.1.pre_feedforward_layernorm", "norm")]
    equal(run(model), wanted)
    assert 1 in fused_steps


@pytest.mark.parametrize("part", ["mlp", "input_layernorm", "self_attn"])
def test_the_probe_finds_what_the_source_does_not_show(part):
    model = build("llama")
    module = getattr(model.model.layers[1], part)

    class Other(type(module)):
        def __call__(self, *args, **context):
            out = super().__call__(*args, **context)
            return (1.001 * out[0], out[1]) if isinstance(out, tuple) else 1.001 * out

    module.__class__ = Other
    wanted = run(model)
    report = fuse.apply(lm_of(model))
    kept = [each for each in report.kept if each.module == "model.layers.1"]
    assert len(kept) == 1 and "differ from the fused layer's" in kept[0].reason
    equal(run(model), wanted)


def test_a_copy_of_a_fused_model_is_its_own(fused_steps):
    model = build("qwen2")
    fuse.apply(lm_of(model), merge=False)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert (run(twin) - run(build("qwen2"))).abs().max() <= 1e-9 and fused_steps
    fuse.apply(lm_of(twin))
    with pytest.raises(LabkitError, match="copied"):
        run(copy.deepcopy(twin))
    third = copy.deepcopy(twin)
    fuse.remove(lm_of(third))
    assert torch.equal(run(third), run(build("qwen2"))) and "_labkit_fuse" in vars(twin)


def test_a_failure_midway_leaves_the_model_as_it_was(monkeypatch):
    model = build("qwen2")
    before = {name: parameter.data_ptr() for name, parameter in model.named_parameters()}
    plain, calls = applied.Builder.build, []

    def build_some(self):
        if len(calls) == 2:
            raise torch.OutOfMemoryError("no room")
        calls.append(plain(self))
        return calls[-1]

    monkeypatch.setattr(applied.Builder, "build", build_some)
    with pytest.raises(torch.OutOfMemoryError):
        fuse.apply(lm_of(model))
    assert not any("forward" in vars(module) for module in model.modules())
    storages = [parameter.untyped_storage().data_ptr() for parameter in model.parameters()]
    assert len(set(storages)) == len(before) and "_labkit_fuse" not in vars(model)


def test_a_merge_that_fails_at_its_biases_leaves_nothing_merged(monkeypatch):
    model = build("qwen2")
    plain, own = merge.Merged._adopt, set(model.parameters())

    def adopt(self, parameters):
        if parameters[0] in own and parameters[0].ndim == 1:
            raise torch.OutOfMemoryError("no room")
        return plain(self, parameters)

    with monkeypatch.context() as patch, pytest.raises(torch.OutOfMemoryError):
        patch.setattr(merge.Merged, "_adopt", adopt)
        fuse.apply(lm_of(model))
    storages = [parameter.untyped_storage().data_ptr() for parameter in model.parameters()]
    assert len(set(storages)) == len(storages)
    assert not fuse.apply(lm_of(model)).kept


def test_removing_frees_the_merged_weights_one_by_one(monkeypatch):
    model = build("qwen2")
    fuse.apply(lm_of(model))
    merged = [weakref.ref(each.weight) for each in vars(model)[applied.STATE]._merged]
    plain, alive = merge.Merged.release, []

    def release(self):
        alive.append(sum(each() is not None for each in merged))
        plain(self)

    monkeypatch.setattr(merge.Merged, "release", release)
    fuse.remove(lm_of(model))
    assert alive == [8, 7, 6, 5, 4, 3, 2, 1], "while one is copied, those before it must be gone"


def test_a_model_made_in_inference_mode(fused_steps):
    with torch.inference_mode():
        model = build("qwen2")
    lm, wanted = lm_of(model), run(model)
    fuse.apply(lm)
    equal(run(model), wanted)
    assert fused_steps
    with torch.no_grad():
        assert model(torch.tensor([[1, 2, 3]])).logits.isfinite().all()
    fuse.remove(lm)
    assert torch.equal(run(model), wanted)


def test_a_mask_with_kv_is_refused():
    model = tiny_llama(0, torch.float64)
    fuse.apply(lm_of(model))
    with torch.no_grad(), pytest.raises(LabkitError, match="would be ignored"):
        model.model.layers[0](
            torch.randn(1, 3, 48).double(), attention_mask=torch.ones(1, 1, 3, 3), position_embeddings=None,
            kv=Store(Layout(0, (3,), (3,)), None),
        )  # fmt: skip


def other(self, y, factor=2):
    """The same as the shape below, in other words."""
    inner: int = self.first(y, a=1, b=factor)
    return inner + self.second(inner)


def swapped(self, y):
    inner = self.first(y, a=1)
    return self.second(inner) + inner


def crossed(self, y):
    inner = self.first(y, a=1)
    return y + self.second(inner)


def constant(self, y):
    inner = self.first(y, a=2)
    return inner + self.second(inner)


@torch.no_grad()
def decorated(self, y):
    inner = self.first(y, a=1)
    return inner + self.second(inner)


def test_matching_of_sources():
    shape = (("sum", "x = self.ONE(h, a=1, **MORE)\nreturn x + self.TWO(x)"),)
    found = match(other, shape)
    assert found.roles == {"ONE": "first", "TWO": "second"} and list(found.extra["MORE"]) == ["b"]
    wrapped_later = functools.wraps(other)(lambda self, y: 2 * other(self, y))
    strange = (swapped, crossed, constant, decorated, wrapped_later, len, None)
    assert [match(each, shape) for each in strange] == [None] * 7
    assert all(
        match(operations.Attend.__call__, known) is None for known in (shapes.LAYERS, shapes.ATTENTIONS)
    )
