"""Packed rows through the installed attention equal each row alone through the model's own, in fp64.

The reference is transformers' eager attention, one row at a time, no cache. Eager rounds its softmax to
float32 even in a float64 model; while a reference is computed that one cast is undone, so that both sides
are float64 and any disagreement above rounding is a fault.
"""

import math
import random

import pytest
import torch
from tiny_architectures import MODELS, VOCAB, Store, build

from labkit.cache.attention import install, remove
from labkit.kernels.layout import Layout
from labkit.kernels.pages import allocate


@pytest.fixture
def eager_in_fp64(monkeypatch):
    plain = torch.nn.functional.softmax

    def softmax(x, dim=None, dtype=None, **other):
        return plain(x, dim=dim, dtype=x.dtype if x.dtype == torch.float64 else dtype, **other)

    monkeypatch.setattr(torch.nn.functional, "softmax", softmax)


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
