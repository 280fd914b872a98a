"""What attention over a paged cache would ignore, and models that ask more of it, are refused with a reason."""

import pytest
import torch
from tiny_architectures import SMALL, VOCAB, Store, build
from transformers import AutoModelForCausalLM, masking_utils
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from labkit.cache.attention import attention, install, position_limit, remove
from labkit.errors import LabkitError
from labkit.kernels.layout import Layout


class TestNothingIsIgnored:
    @pytest.fixture
    def model(self):
        model = build("llama", torch.float32)
        install(model)
        yield model
        remove(model)

    @pytest.fixture
    def arguments(self):
        return {
            "input_ids": torch.tensor([[1, 2, 3]]),
            "position_ids": torch.tensor([[0, 1, 2]]),
            "use_cache": False,
            "kv": Store(Layout(0, (3,), (3,)), None),
        }

    def test_the_call_itself_is_right(self, model, arguments):
        assert model(**arguments).logits.isfinite().all()

    @pytest.mark.parametrize("word", ["kv", "position_ids"])
    def test_what_is_missing(self, model, arguments, word):
        del arguments[word]
        with pytest.raises(LabkitError, match=f"without `{word}`"):
            model(**arguments)

    @pytest.mark.parametrize("shape", [(1, 3), (1, 1, 3, 3)])
    @pytest.mark.parametrize("inner", [False, True])
    def test_a_mask(self, model, arguments, shape, inner):
        arguments["attention_mask"] = torch.ones(shape, dtype=torch.long)
        with pytest.raises(LabkitError, match="mask"):
            (model.model if inner else model)(**arguments)

    def test_a_mask_by_position(self, model, arguments):
        ids = arguments.pop("input_ids")
        with pytest.raises(LabkitError, match="mask"):
            model(ids, torch.ones(1, 3), **arguments)

    @pytest.mark.parametrize("use_cache", [None, True])
    def test_the_cache_of_transformers(self, model, arguments, use_cache):
        with pytest.raises(LabkitError, match="cache"):
            model(**{**arguments, "use_cache": use_cache})

    def test_two_rows_of_a_batch(self, model, arguments):
        ids = torch.ones(2, 3, dtype=torch.long)
        with pytest.raises(LabkitError, match="one"):
            model(**{**arguments, "input_ids": ids, "position_ids": torch.arange(3).expand(2, 3)})

    def test_another_attention_under_it(self, model, arguments):
        model.set_attn_implementation("sdpa")
        with pytest.raises(LabkitError, match="Another attention"):
            model(**arguments)

    @pytest.mark.parametrize(
        "term", [{"s_aux": torch.ones(2)}, {"position_bias": torch.ones(1)}, {"dropout": 0.1},
                 {"attention_mask": torch.ones(1, 1, 3, 3)}], ids=lambda term: next(iter(term)),
    )  # fmt: skip
    def test_terms_it_does_not_have(self, arguments, term):
        q = torch.randn(1, 2, 3, 8)
        with pytest.raises(LabkitError, match="paged attention has none"):
            attention(torch.nn.Module(), q, q, q, **{"attention_mask": None, "kv": arguments["kv"], **term})

    def test_generate_says_why_it_cannot(self, model):
        with pytest.raises(LabkitError, match="installed"):
            model.generate(torch.tensor([[1, 2]]), max_new_tokens=2)

    def test_positions_are_never_looked_at_on_the_host(self, model, arguments, monkeypatch):
        """It would stop a GPU once a step and cannot be captured in a graph."""
        monkeypatch.setattr(masking_utils, "find_packed_sequence_indices", lambda positions: 1 / 0)
        model(**arguments)


SINKS = {"num_local_experts": 2, "num_experts_per_tok": 1}
MLA = {"kv_lora_rank": 16, "q_lora_rank": None, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}


@pytest.mark.parametrize(
    ("kind", "changes", "word"),
    [
        ("gpt_oss", SINKS, "sinks"),
        ("bloom", {}, "ALiBi"),
        ("mpt", {}, "ALiBi"),
        ("deepseek_v2", MLA, "MLA"),
        ("deepseek_v3", MLA, "MLA"),
        ("mamba", {}, "state-space"),
        ("gptj", {"rotary_dim": 8}, "interface"),
        ("doge", {}, "of its own"),
        ("diffllama", {}, "8 times for its 4 layers"),
        ("moshi", {}, "sliding window"),
    ],
)
def test_others_are_refused_in_one_sentence(kind, changes, word):
    settings = {**SMALL, **changes}
    if kind in ("bloom", "mpt", "gptj", "mamba"):
        settings = {"vocab_size": VOCAB, "hidden_size": 48, "d_model": 48, "n_layers": 2, "n_layer": 2, "n_heads": 4,
                    "n_head": 4, "n_embd": 48, "num_hidden_layers": 2, "state_size": 4, **changes}  # fmt: skip
    config = CONFIG_MAPPING[kind](**settings)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    before = model.config._attn_implementation
    with pytest.raises(LabkitError, match=word) as error:
        install(model)
    assert config.model_type in str(error.value) and error.value.what.count(".") <= 1
    assert model.config._attn_implementation == before and not model.base_model._forward_pre_hooks


def test_position_limits():
    def config(kind="llama", **changes):
        return CONFIG_MAPPING[kind](**{**SMALL, **changes})

    long_rope = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "factor": 4.0,
                 "rope_theta": 1e4, "original_max_position_embeddings": 64}  # fmt: skip
    assert position_limit(config()) == 256
    assert position_limit(config("gpt2", n_positions=128, max_position_embeddings=128)) == 128
    assert position_limit(config(rope_parameters=long_rope)) == 64
    phi3 = config("phi3", head_dim=8, original_max_position_embeddings=32, rope_scaling={
        "rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "rope_theta": 1e4})  # fmt: skip
    assert position_limit(phi3) == 32
    dynamic = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    assert position_limit(config(rope_parameters=dynamic)) == 256
    yarn = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, "original_max_position_embeddings": 64}
    assert position_limit(config(rope_parameters=yarn)) == 256  # its frequencies do not depend on the batch
    nested = {"full_attention": long_rope, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}
    assert position_limit(config("gemma3_text", rope_parameters=nested)) == 64
