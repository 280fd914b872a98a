"""The cost card against real modules: parameters, FLOPs, cache bytes; and its pure formulas against counting."""

import random

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from profile_stand_in import tiny_lm
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, LlamaConfig

from labkit.errors import LabkitError
from labkit.profile import DATASHEET, Ceilings, cost_card, datasheet_for, mbu, mfu, shape_of
from labkit.profile.card import decode_flops, kv_cache_bytes, prefill_flops
from labkit.profile.card_text import amount
from labkit.profile.datasheet import named
from labkit.profile.formulas import attended_pairs, attention_flops, floor_seconds, kv_bytes

FAMILIES = ["llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "phi3", "olmo2", "gpt2"]
FAMILIES += ["gpt_neox", "opt"]
PLAIN = Ceilings(bandwidth=1e9, flops=1e12, name="plain", source="test")


def tiny_config(kind: str, seed: int) -> transformers.PretrainedConfig:
    """A random small configuration: grouped queries, odd widths, both kinds of embedding."""
    rng = random.Random(f"{kind}{seed}")
    kv_heads, head_dim = rng.randint(1, 3), rng.choice([8, 16])
    heads = kv_heads * rng.randint(1, 3)
    kv_heads = heads if kind == "gpt_neox" else kv_heads  # it has no grouped queries
    common = {"vocab_size": rng.randint(50, 90), "tie_word_embeddings": rng.random() < 0.5, "use_cache": True}
    common |= {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": None}
    if kind == "gpt2":
        return AutoConfig.for_model(
            kind, n_embd=heads * head_dim, n_head=heads, n_layer=rng.randint(1, 3), n_positions=96,
            n_inner=rng.choice([None, 40]), **common,
        )  # fmt: skip
    if kind == "opt":
        return AutoConfig.for_model(
            kind, hidden_size=heads * head_dim, word_embed_proj_dim=heads * head_dim, num_attention_heads=heads,
            num_hidden_layers=rng.randint(1, 3), ffn_dim=rng.randint(30, 60), max_position_embeddings=96,
            enable_bias=rng.random() < 0.5, **{**common, "pad_token_id": 1},
        )  # fmt: skip
    # Phi-3 and OLMo 2 take the head's width from the hidden one
    hidden = (
        heads * head_dim if kind in ("phi3", "olmo2", "qwen2", "gpt_neox") else heads * rng.choice([10, 12])
    )
    if kind in ("llama", "qwen3", "gemma2", "gemma3_text", "olmo2", "gpt_neox"):
        common["attention_bias"] = rng.random() < 0.5
    if kind == "llama":
        common["mlp_bias"] = rng.random() < 0.5
    if kind not in ("phi3", "olmo2", "qwen2", "gpt_neox"):
        common["head_dim"] = head_dim
    return AutoConfig.for_model(
        kind, hidden_size=hidden, intermediate_size=rng.randint(30, 60), num_hidden_layers=rng.randint(1, 3),
        num_attention_heads=heads, num_key_value_heads=kv_heads, max_position_embeddings=128, **common,
    )  # fmt: skip


def build(config, **arguments):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, **arguments).eval()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", FAMILIES)
def test_parameters_are_counted_from_the_configuration_alone(kind, seed):
    config = tiny_config(kind, seed)
    with torch.device("meta"):
        model = build(config)
    assert shape_of(config).parameters == sum(weight.numel() for weight in model.parameters())
    assert not shape_of(config).assumed


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", ["llama", "qwen2", "gpt2", "qwen3", "olmo2", "phi3", "opt"])
def test_flops_are_those_that_torch_counts(kind, seed):
    config = tiny_config(kind, seed)
    model, shape, prompt, batch = build(config, attn_implementation="eager"), shape_of(config), 13, 2
    cache = DynamicCache(config=config)
    ids = torch.randint(0, config.vocab_size, (batch, prompt))

    def counted(tokens):
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(input_ids=tokens, past_key_values=cache, use_cache=True, logits_to_keep=1)
        return counter.get_total_flops() - rotary(config, tokens.shape[1])

    # eager attention computes the full square; the card counts what the mask leaves of it
    hidden = prompt * (prompt - 1) // 2
    masked = batch * shape.layers * attention_flops(shape.heads, shape.head_dim, hidden)
    assert counted(ids) == prefill_flops(shape, prompt, batch) + masked
    assert counted(ids[:, :1]) == decode_flops(shape, prompt + 1, batch)


def rotary(config, tokens):
    """The outer product of positions and frequencies, done once a forward as a matrix product: not the model's work."""
    if config.model_type in ("gpt2", "opt"):
        return 0
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * (dim // 2) * tokens


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gpt2", "gemma2"])
def test_kv_bytes_are_those_of_the_real_cache(kind):
    config = tiny_config(kind, 1)
    cache, tokens, batch = DynamicCache(config=config), 11, 3
    with torch.no_grad():
        build(config)(
            input_ids=torch.randint(0, config.vocab_size, (batch, tokens)),
            past_key_values=cache,
            use_cache=True,
        )
    stored = sum(
        part.numel() * part.element_size() for layer in cache.layers for part in (layer.keys, layer.values)
    )
    assert kv_cache_bytes(shape_of(config), tokens, batch, element=4) == stored


@given(st.integers(1, 30), st.integers(0, 30), st.one_of(st.none(), st.integers(1, 40)))
def test_attended_pairs_are_the_ones_in_the_mask(new, past, window):
    mask = [
        (query, key)
        for query in range(past, past + new)
        for key in range(past + new)
        if key <= query and (window is None or key > query - window)
    ]
    assert attended_pairs(new, past, window) == len(mask)


def test_sliding_layers_keep_and_attend_to_their_window_only():
    full = tiny_config("gemma2", 0)
    full.sliding_window, full.layer_types = 8, ["full_attention"] * full.num_hidden_layers
    sliding = tiny_config("gemma2", 0)
    sliding.sliding_window, sliding.layer_types = 8, ["sliding_attention"] * full.num_hidden_layers
    one, other = (cost_card(config, PLAIN, prompt=40) for config in (full, sliding))
    assert other.kv_bytes * 5 == one.kv_bytes
    assert other.decode.flops < one.decode.flops and other.prefill.flops < one.prefill.flops
    assert cost_card(full, PLAIN, prompt=8).kv_bytes == cost_card(sliding, PLAIN, prompt=8).kv_bytes


def llama_7b() -> LlamaConfig:
    return LlamaConfig(
        vocab_size=32000, hidden_size=4096, intermediate_size=11008, num_hidden_layers=32,
        num_attention_heads=32, num_key_value_heads=32, tie_word_embeddings=False,
    )  # fmt: skip


def test_llama_2_7b_as_published():
    card = cost_card(llama_7b(), DATASHEET["H100-SXM"], dtype=torch.float16, prompt=512, context=4096)
    assert card.parameters == 6_738_415_616
    assert card.weight_bytes == 2 * card.parameters
    assert card.weight_bytes_read == card.weight_bytes - 2 * 32000 * 4096  # the input table is looked up
    assert card.kv_bytes_per_token == 524_288
    assert card.kv_bytes == 524_288 * 4096 == kv_bytes(32, 32, 128, 4096)
    assert card.decode.bound == "memory" and card.prefill.bound == "compute"
    assert card.decode.intensity < 1.1
    assert card.tpot_floor == (card.weight_bytes_read + card.kv_bytes) / 3.35e12


def test_a_batch_shares_the_weights_but_not_the_cache():
    one, many = (cost_card(llama_7b(), PLAIN, context=100, batch=batch) for batch in (1, 8))
    assert many.weight_bytes_read == one.weight_bytes_read
    assert many.kv_bytes == 8 * one.kv_bytes and many.decode.flops == 8 * one.decode.flops
    assert many.decode.intensity > one.decode.intensity


def test_the_claimed_ridge_is_of_the_sparse_figure():
    dense = DATASHEET["H100-SXM"].ridge
    assert round(dense) == 295
    assert round(1979e12 / 3e12) == 660  # as the article has it
    assert "sparsity" in DATASHEET["H100-SXM"].note


def test_an_lm_brings_its_stored_bytes_and_a_tied_table_is_read():
    lm = tiny_lm()
    card = cost_card(lm, PLAIN)
    assert card.weight_bytes == card.weight_bytes_read == lm.weight_bytes
    assert card.dtype == "float32" and card.name == "tiny"
    halved = cost_card(lm, PLAIN, weight_bytes=lm.weight_bytes / 2)
    assert halved.weight_bytes == lm.weight_bytes / 2 and halved.kv_bytes == card.kv_bytes


def test_the_printed_card_has_a_formula_on_every_line():
    lines = str(cost_card(llama_7b(), DATASHEET["H200-SXM"])).splitlines()
    for label in ("weights", "KV per token", "ridge", "prefill FLOPs", "floor TTFT", "floor TPOT"):
        line = next(line for line in lines if line.strip().startswith(label + "  "))
        assert any(symbol in line for symbol in "×÷+−") or "stored" in line
    assert "sparsity" in lines[-1]


def test_an_unknown_family_is_read_as_a_llama_and_says_so():
    config = AutoConfig.for_model("stablelm", hidden_size=64, num_attention_heads=4, num_hidden_layers=2)
    assert shape_of(config).assumed
    assert "read as a Llama" in str(cost_card(config, PLAIN))


@pytest.mark.parametrize(("kind", "reason"), [
    ("dbrx", "experts"), ("dots1", "experts"), ("mixtral", "experts"), ("aria_text", "experts"),
    ("bamba", "recurrent"), ("recurrent_gemma", "recurrent"), ("lfm2", "recurrent"),
    ("bert", "left to right"), ("t5", "encoder-decoder"), ("falcon", "attention code of its own"),
    ("gpt_bigcode", "no single intermediate_size"), ("gemma3n_text", "no single intermediate_size"),
    ("gemma4_text", "no single head_dim"),
])  # fmt: skip
def test_what_is_no_dense_decoder_is_refused_by_name(kind, reason):
    with pytest.raises(LabkitError, match=kind) as caught:
        shape_of(AutoConfig.for_model(kind))
    assert reason in caught.value.what


def test_an_unknown_family_of_another_build_is_refused():
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 256}
    config = AutoConfig.for_model("phi", vocab_size=99, pad_token_id=None, **sizes)  # its MLP has no gate
    with torch.device("meta"):
        real = sum(weight.numel() for weight in build(config).parameters())
    with pytest.raises(LabkitError, match="phi is not built as a Llama") as caught:
        shape_of(config)
    assert f"{real:,}" in caught.value.what


def test_opt_with_narrow_tables_is_refused():
    with pytest.raises(LabkitError, match="another width"):
        shape_of(AutoConfig.for_model("opt", hidden_size=1024, word_embed_proj_dim=512))


def test_a_configuration_may_be_its_dictionary():
    assert shape_of(llama_7b().to_dict()) == shape_of(llama_7b())


@pytest.mark.parametrize("call", [
    lambda: cost_card(llama_7b(), PLAIN, prompt=0),
    lambda: cost_card(llama_7b(), PLAIN, batch=0),
    lambda: cost_card(llama_7b(), PLAIN, dtype="int3"),
    lambda: cost_card(AutoConfig.for_model("mixtral"), PLAIN),
    lambda: shape_of(3),
    lambda: shape_of({"no": "type"}),
    lambda: named("H9000"),
    lambda: mbu(1, 1, 0, 1),
    lambda: mfu(1, 1, 0),
])  # fmt: skip
def test_what_has_no_cost_is_refused(call):
    with pytest.raises(LabkitError):
        call()


@given(*[st.floats(1e3, 1e15)] * 4)
def test_the_floor_is_the_larger_of_both_times(flops, moved, peak, bandwidth):
    floor = floor_seconds(flops, moved, peak, bandwidth)
    assert floor in (flops / peak, moved / bandwidth)
    assert mfu(flops, floor, peak) <= 1 + 1e-12 and mbu(moved, 0, floor, bandwidth) <= 1 + 1e-12


@pytest.mark.parametrize(("driver", "key"), [
    ("NVIDIA H200", "H200-SXM"), ("NVIDIA H100 80GB HBM3", "H100-SXM"), ("NVIDIA H100 PCIe", "H100-PCIe"),
    ("NVIDIA A100-SXM4-80GB", "A100-80GB-SXM"), ("NVIDIA L4", "L4"), ("Tesla T4", "T4"), ("NVIDIA A10", "A10"),
    ("NVIDIA GeForce RTX 4090", "RTX-4090"), ("NVIDIA GH200 480GB", None), ("NVIDIA H200 NVL", None),
    ("NVIDIA A10G", None), ("NVIDIA L40", None), ("NVIDIA GeForce RTX 4090 Laptop GPU", None), ("CPU x", None),
])  # fmt: skip
def test_a_driver_name_finds_its_own_datasheet_only(driver, key):
    assert datasheet_for(driver) == (DATASHEET[key] if key else None)


def test_amounts_read_well():
    assert [amount(value, "B") for value in (0, 999, 13.5e9, 999.6e3, 1e6)] == [
        "0 B", "999 B", "13.5 GB", "1 MB", "1 MB",
    ]  # fmt: skip
