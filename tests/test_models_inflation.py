"""An inflated model says exactly what the small one says."""

import dataclasses

import pytest
import torch
from tiny_models import VOCAB, tiny_config, tiny_llama

from labkit.errors import LabkitError
from labkit.models import Shape, inflate, inflated_config, load
from labkit.models.inflation import HeadMap, emptiness

CPU = torch.device("cpu")

SHAPES = {
    "same": Shape("", 48, 2, 6, 2, 16, 80, tied=True),
    "wider": Shape("", 112, 2, 6, 2, 16, 80, tied=True),
    "more neurons": Shape("", 48, 2, 6, 2, 16, 208, tied=True),
    "deeper": Shape("", 48, 5, 6, 2, 16, 80, tied=True),
    "GQA to MHA": Shape("", 96, 2, 8, 8, 16, 80, tied=True),
    "GQA to groups of 4": Shape("", 96, 2, 16, 4, 16, 80, tied=True),
    "GQA to groups of 2": Shape("", 96, 2, 12, 6, 16, 80, tied=True),
    "GQA to one KV head each 6": Shape("", 96, 2, 12, 2, 16, 80, tied=True),
    "head dim x2": Shape("", 96, 2, 6, 2, 32, 80, tied=True),
    "head dim x4, MHA": Shape("", 128, 2, 8, 8, 64, 80, tied=True),
    "untied": Shape("", 48, 2, 6, 2, 16, 80, tied=False),
    "everything": Shape("", 160, 4, 16, 8, 32, 224, tied=False),
}


def logits(model, ids, positions=None):
    with torch.no_grad():
        return model(ids, position_ids=positions).logits


def inflated(small, shape, dtype, **options):
    return inflate(small, inflated_config(small.config, shape), device=CPU, dtype=dtype, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_logits_are_the_small_models(name, dtype):
    small = tiny_llama(seed=len(name), dtype=dtype)
    big = inflated(small, SHAPES[name], dtype, seed=7)
    ids = torch.randint(0, VOCAB, (2, 37))
    want, got = logits(small, ids), logits(big, ids)
    assert want.abs().max() > 1, "the logits must be large enough for the tolerance to bite"
    # the norm and rotary tables are computed in fp32 even in an fp64 model, so a part of the rounding stays
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_long_positions():
    small = tiny_llama(seed=3)
    big = inflated(small, SHAPES["everything"], torch.float32)
    assert big.config.max_position_embeddings >= 16_384
    ids = torch.randint(0, VOCAB, (1, 24))
    positions = torch.arange(16_384 - 24, 16_384)[None]
    torch.testing.assert_close(
        logits(big, ids, positions), logits(small, ids, positions), rtol=1e-5, atol=1e-5
    )


def test_untied_small_model_keeps_its_own_head():
    small = tiny_llama(seed=4, tie_word_embeddings=False)
    ids = torch.randint(0, VOCAB, (1, 20))
    big = inflated(small, SHAPES["everything"], torch.float32)
    torch.testing.assert_close(logits(big, ids), logits(small, ids), rtol=1e-5, atol=1e-5)
    with pytest.raises(LabkitError, match="tie_word_embeddings"):
        inflated(small, SHAPES["wider"], torch.float32)


def test_greedy_text_is_equal():
    small = tiny_llama(seed=5, dtype=torch.float64)
    big = inflated(small, SHAPES["everything"], torch.float64)
    prompt = torch.randint(1, VOCAB, (1, 9))
    options = {"max_new_tokens": 40, "do_sample": False, "eos_token_id": -1, "pad_token_id": 0}
    mask = torch.ones_like(prompt)
    want, got = (model.generate(prompt, attention_mask=mask, **options) for model in (small, big))
    assert want.shape == (1, 49)
    assert torch.equal(want, got)


def test_empty_is_tiny_but_not_zero():
    small = tiny_llama(seed=6)
    big = inflated(small, SHAPES["everything"], torch.float32)
    layer, added = big.model.layers[0], big.model.layers[-1]
    empties = (
        big.model.embed_tokens.weight[:, 48:],
        big.lm_head.weight[:, 48:],
        layer.self_attn.o_proj.weight[48:],
        layer.mlp.down_proj.weight[48:],
        layer.mlp.down_proj.weight[:, 80:],
        added.self_attn.o_proj.weight,
        added.mlp.down_proj.weight,
    )
    for part in empties:
        assert part.abs().max() < 2.0**-38
        assert (part != 0).float().mean() > 0.999
    full = (
        layer.mlp.gate_proj.weight[80:],
        added.self_attn.q_proj.weight,
        layer.self_attn.q_proj.weight[:, 48:],
    )
    for part in full:
        assert part.std() > 1e-3


def test_empty_survives_float16():
    assert torch.tensor(0.02 * emptiness(torch.float16), dtype=torch.float16) != 0
    small = tiny_llama(seed=8)
    big = inflated(small, SHAPES["everything"], torch.float16)
    assert (big.model.embed_tokens.weight[:, 48:] != 0).float().mean() > 0.5
    ids = torch.randint(0, VOCAB, (1, 30))
    want, got = logits(small, ids), logits(big, ids).float()
    assert (got - want).abs().max() < 0.05 * want.abs().max()


def test_bf16_stays_within_its_rounding():
    small = tiny_llama(seed=9, dtype=torch.bfloat16)
    big = inflated(small, SHAPES["everything"], torch.bfloat16)
    ids = torch.randint(0, VOCAB, (2, 40))
    exact = logits(tiny_llama(seed=9, dtype=torch.bfloat16).float(), ids)
    small_error = (logits(small, ids).float() - exact).abs().mean()
    big_error = (logits(big, ids).float() - exact).abs().mean()
    assert 0 < big_error < 3 * small_error


def test_real_blocks_stand_on_quantisation_groups():
    """At the presets' sizes no group of 128 inputs holds both a real weight and a full-size random one."""
    small = tiny_config(hidden_size=384, num_attention_heads=6, num_key_value_heads=2, head_dim=64)
    for big_heads, big_kv, head_dim in ((32, 8, 64), (32, 32, 128), (32, 8, 128)):
        shape = Shape("", 4096, 2, big_heads, big_kv, head_dim, 2048, tied=False)
        heads = HeadMap.of(small, inflated_config(small, shape))
        assert small.hidden_size % 128 == 0
        assert len(set(heads.queries)) == 6 and max(heads.queries) < big_heads
        group = big_heads // big_kv
        for query_head, big_head in enumerate(heads.queries):
            assert dict(heads.keys)[big_head // group] == query_head // 3


def test_the_seed_decides_the_filling():
    small = tiny_llama(seed=10)
    one, same, other = (inflated(small, SHAPES["wider"], torch.float32, seed=seed) for seed in (1, 1, 2))
    weight = [model.model.layers[0].self_attn.q_proj.weight for model in (one, same, other)]
    assert torch.equal(weight[0], weight[1])
    assert not torch.equal(weight[0], weight[2])
    assert torch.equal(weight[0][:, :48], weight[2][:, :48])


def test_random_control_is_random_and_finite():
    small = tiny_llama(seed=11)
    shape = Shape("", 256, 12, 8, 8, 32, 512, tied=False)
    big = inflated(small, shape, torch.float16, random_weights=True)
    out = logits(big, torch.randint(0, VOCAB, (2, 64)))
    assert torch.isfinite(out).all()
    assert out.float().std() > 0.01
    for weight in big.parameters():
        assert weight.abs().float().median() > 1e-3


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"hidden": 40}, "hidden_size"),
        ({"layers": 1}, "num_hidden_layers"),
        ({"intermediate": 64}, "intermediate_size"),
        ({"head_dim": 24}, "head_dim"),
        ({"heads": 4, "kv_heads": 2}, "num_attention_heads"),
        ({"heads": 12, "kv_heads": 1}, "KV heads"),
    ],
)
def test_a_shape_that_is_too_small_is_named(changes, named):
    shape = dataclasses.replace(SHAPES["same"], **changes)
    with pytest.raises(LabkitError, match=named):
        inflated(tiny_llama(), shape, torch.float32)


def test_other_models_are_refused():
    small = tiny_llama(attention_bias=True)
    with pytest.raises(LabkitError, match="biases"):
        inflated(small, SHAPES["wider"], torch.float32)
    small = tiny_llama()
    config = inflated_config(small.config, SHAPES["wider"])
    config.rope_parameters = {"rope_type": "default", "rope_theta": 500_000.0}
    with pytest.raises(LabkitError, match="rope_parameters"):
        inflate(small, config, device=CPU, dtype=torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_labcoder_inflates_exactly(dtype):
    small = load("labcoder", device="cpu", dtype=dtype)
    shape = Shape("", 512, 8, 8, 8, 128, 1152, tied=False)
    big = inflated(small.model, shape, dtype)
    ids = small.encode('def area(radius):\n    """The area of a circle."""\n    return')
    for offset in (0, 16_384 - ids.shape[1]):
        positions = torch.arange(ids.shape[1])[None] + offset
        want, got = logits(small.model, ids, positions), logits(big, ids, positions)
        assert (got - want).abs().max() <= 1e-5 * want.abs().max()


@pytest.mark.slow
def test_the_1b_preset_says_what_labcoder_says():
    small, big = (load(name, device="cpu", dtype=torch.float32) for name in ("labcoder", "labcoder@1b"))
    ids = small.encode("def fibonacci(n):\n")
    want, got = logits(small.model, ids), logits(big.model, ids)
    assert (got - want).abs().max() <= 1e-5 * want.abs().max()
    assert torch.equal(want.argmax(-1), got.argmax(-1))
