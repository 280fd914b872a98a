"""Packed rows through the installed attention equal each row alone through the model's own, in fp64.

The reference is transformers' eager attention, one row at a time, no cache. Eager rounds its softmax to
float32 even in a float64 model; while a reference is computed that one cast is undone, so that both sides
are float64 and any disagreement above rounding is a fault.
"""

import math
import random
from dataclasses import dataclass

import pytest
import torch
from transformers import AutoModelForCausalLM, masking_utils
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from labkit.cache.attention import attention, install, position_limit, remove
from labkit.errors import LabkitError
from labkit.kernels.layout import Layout
from labkit.kernels.pages import allocate

VOCAB = 97
SMALL = {
    "vocab_size": VOCAB, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": 0,
    "eos_token_id": 0,
}  # fmt: skip
WINDOW = {"sliding_window": 7}
MODELS = {
    "llama": ("llama", {}),
    "qwen2": ("qwen2", {}),
    "qwen2 window": ("qwen2", {"use_sliding_window": True, "max_window_layers": 2, **WINDOW}),
    "qwen3": ("qwen3", {}),
    "mistral window": ("mistral", WINDOW),
    "gemma2": ("gemma2", {"query_pre_attn_scalar": 5, "attn_logit_softcapping": 2.0, **WINDOW}),
    "gemma3": ("gemma3_text", {"query_pre_attn_scalar": 5, "sliding_window_pattern": 2, **WINDOW}),
    "phi3": ("phi3", {"num_attention_heads": 6, "head_dim": None}),
    "phi3 window": ("phi3", {"head_dim": None, **WINDOW}),
    "olmo2": ("olmo2", {"head_dim": None}),
    "gpt2": ("gpt2", {"n_inner": 64, "num_key_value_heads": None, "scale_attn_by_inverse_layer_idx": True}),
}  # fmt: skip


def build(name, dtype=torch.float64):
    kind, changes = MODELS[name]
    settings = {key: value for key, value in {**SMALL, **changes}.items() if value is not None}
    torch.manual_seed(len(name))
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[kind](**settings), attn_implementation="eager")
    with torch.no_grad():
        for weight in model.parameters():  # large enough that attention is far from uniform
            weight.normal_(
                1.0 if weight.ndim == 1 else 0.0, 0.3 if weight.ndim == 1 else 1.5 * weight.shape[-1] ** -0.5
            )
    return model.to(dtype).eval()


@pytest.fixture
def eager_in_fp64(monkeypatch):
    plain = torch.nn.functional.softmax

    def softmax(x, dim=None, dtype=None, **other):
        return plain(x, dim=dim, dtype=x.dtype if x.dtype == torch.float64 else dtype, **other)

    monkeypatch.setattr(torch.nn.functional, "softmax", softmax)


@dataclass
class Store:
    """The least that the model's forward needs of a cache."""

    layout: Layout
    layers: list | None

    def pages(self, layer):
        return None if self.layers is None else self.layers[layer]


class Kitchen:
    """Rows of random text, run step by step in random pieces, all rows in one pack."""

    def __init__(self, model, lengths, block_size, *, seed=0, shared=0, quantised=False):
        torch.manual_seed(seed)
        self.model, self.block_size, self.random = model, block_size, random.Random(seed)
        self.texts = [torch.randint(0, VOCAB, (n,)).tolist() for n in lengths]
        for text in self.texts[1:]:
            text[: shared * block_size] = self.texts[0][: shared * block_size]
        self.done = [0] * len(lengths)
        needed = [math.ceil(n / block_size) for n in lengths]
        ids = list(range(sum(needed) + 2))
        self.random.shuffle(ids)
        self.tables = [[ids.pop() for _ in range(count)] for count in needed]
        for row in range(1, len(lengths)):
            if shared:
                self.tables[row][:shared] = self.tables[0][:shared]
                self.done[row] = shared * block_size
        self.spare = ids[0]
        config = model.config
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.layers = [
            allocate(sum(needed) + 2, block_size, heads, dim, model.dtype, "cpu", quantised=quantised)
            for _ in range(config.num_hidden_layers)
        ]
        if not quantised:
            for pages in self.layers:
                pages.keys.fill_(torch.nan), pages.values.fill_(torch.nan)
        self.logits = [torch.full((n, VOCAB), torch.nan, dtype=model.dtype) for n in lengths]

    def step(self, counts):
        """Run counts[row] more tokens of some rows; one-token pieces go first."""
        order = sorted((row for row, count in counts.items() if count), key=lambda row: counts[row] > 1)
        start = {row: self.done[row] for row in order}
        slot = [self.tables[row][p // self.block_size] * self.block_size + p % self.block_size
                for row in order for p in range(start[row], start[row] + counts[row])]  # fmt: skip
        width = max(map(len, self.tables))
        lengths = tuple(start[row] + counts[row] for row in order)
        layout = Layout(
            sum(counts[row] == 1 for row in order), tuple(counts[row] for row in order), lengths, torch.tensor(slot),
            torch.tensor([self.tables[row] + [self.spare] * (width - len(self.tables[row])) for row in order],
                         dtype=torch.int32),
            torch.tensor(lengths, dtype=torch.int32),
        )  # fmt: skip
        pieces = [self.texts[row][start[row] : start[row] + counts[row]] for row in order]
        positions = [p for row in order for p in range(start[row], start[row] + counts[row])]
        with torch.no_grad():
            logits = self.model(
                input_ids=torch.tensor([sum(pieces, [])]), position_ids=torch.tensor([positions]), use_cache=False,
                kv=Store(layout, self.layers),
            ).logits[0]  # fmt: skip
        for row, part in zip(order, logits.split(layout.queries), strict=True):
            self.logits[row][start[row] : start[row] + counts[row]] = part
            self.done[row] += counts[row]

    def run(self):
        """Random pieces of random rows until all texts are done."""
        while any(done < len(text) for done, text in zip(self.done, self.texts, strict=True)):
            counts = {}
            for row, text in enumerate(self.texts):
                left = len(text) - self.done[row]
                counts[row] = min(left, self.random.choice((0, 1, 1, 2, 5, 9, 30)))
            if any(counts.values()):
                self.step(counts)


def alone(model, text):
    """Logits [tokens, vocabulary] of one row through the model's own attention."""
    ids, positions = torch.tensor([text]), torch.arange(len(text))[None]
    with torch.no_grad():
        return model(input_ids=ids, position_ids=positions, use_cache=False).logits[0]


@pytest.fixture(params=sorted(MODELS))
def model(request, eager_in_fp64):
    return build(request.param)


def test_packed_rows_equal_each_row_alone(model):
    wanted = {}
    for block_size in (1, 3, 16):
        kitchen = Kitchen(model, [1, 5, 33, 17, 48], block_size, seed=block_size)
        wanted = [alone(model, text) for text in kitchen.texts]
        install(model)
        try:
            kitchen.run()
        finally:
            remove(model)
        for found, expected in zip(kitchen.logits, wanted, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_rows_that_share_blocks(model):
    kitchen = Kitchen(model, [40, 29, 17], 8, shared=2)
    wanted = [alone(model, text) for text in kitchen.texts]
    install(model)
    kitchen.step({0: 16})  # the shared prefix is run once, by row 0
    kitchen.run()
    remove(model)
    torch.testing.assert_close(kitchen.logits[0], wanted[0], rtol=1e-9, atol=1e-9)
    for row in (1, 2):
        torch.testing.assert_close(kitchen.logits[row][16:], wanted[row][16:], rtol=1e-9, atol=1e-9)


def test_without_a_store_each_row_sees_itself(model):
    lengths = (1, 12, 1, 31)
    texts = [torch.randint(0, VOCAB, (n,)).tolist() for n in lengths]
    wanted = [alone(model, text) for text in texts]
    install(model)
    with torch.no_grad():
        logits = model(
            input_ids=torch.tensor([sum(texts, [])]), position_ids=torch.cat([torch.arange(n) for n in lengths])[None],
            use_cache=False, kv=Store(Layout(0, lengths, lengths), None),
        ).logits[0]  # fmt: skip
    remove(model)
    torch.testing.assert_close(logits, torch.cat(wanted), rtol=1e-9, atol=1e-9)


def test_a_quantised_store_gives_the_same_however_text_is_cut(eager_in_fp64):
    model, results = build("llama"), []
    install(model)
    for seed in (1, 2):
        kitchen = Kitchen(model, [30, 21], 4, seed=7, quantised=True)
        kitchen.random.seed(seed)
        kitchen.run()
        results.append(kitchen)
    remove(model)
    for first, second, text in zip(results[0].logits, results[1].logits, results[0].texts, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-5, atol=1e-5)  # scales are float32
        assert 1e-4 < (first - alone(model, text)).abs().max() < 2.0


def test_the_models_own_attention_comes_back():
    model = build("gemma2")
    model.set_attn_implementation("sdpa")
    before = alone(model, [3, 1, 4, 1, 5])
    install(model), install(model)
    remove(model)
    assert model.config._attn_implementation == "labkit"
    remove(model)
    assert model.config._attn_implementation == "sdpa" and not model.base_model._forward_pre_hooks
    assert torch.equal(alone(model, [3, 1, 4, 1, 5]), before)
    remove(model)  # once too often is no harm


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
