"""Three caches behind one interface: the same logits, and the memory that each says it takes."""

from __future__ import annotations

import pytest
import torch
from tiny_models import tiny_llama, tiny_tokenizer

from labkit.cache import (
    Chunk,
    ContiguousCache,
    OutOfBlocks,
    PagedCache,
    Recompute,
    forward,
    install,
    remove,
    token_bytes,
)
from labkit.errors import LabkitError
from labkit.models import LM

KINDS = {
    "recompute": lambda lm: Recompute(lm),
    "contiguous": lambda lm: ContiguousCache(lm, rows=3, capacity=40),
    "paged": lambda lm: PagedCache(lm, 20, 4),
    "paged, blocks of 1": lambda lm: PagedCache(lm, 99, 1, share=False),
}


@pytest.fixture
def lm():
    model = tiny_llama(2, torch.float64)
    install(model)
    yield LM(model, tiny_tokenizer(), "tiny", torch.device("cpu"), torch.float64)
    remove(model)


def expected(lm, tokens):
    """Logits after all tokens, from transformers' own attention."""
    remove(lm.model)
    with torch.no_grad():
        logits = lm.model(torch.tensor([tokens])).logits[0, -1]
    install(lm.model)
    return logits


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_each_kind_gives_the_models_logits(lm, kind):
    cache, rows = KINDS[kind](lm), {1: list(range(2, 15)), 7: [5, 9], 4: list(range(40, 61))}
    for row, tokens in rows.items():
        cache.open(row, tokens)
    logits = forward(lm, cache.pack([Chunk(row, 0, tokens) for row, tokens in rows.items()]))
    for step in range(6):
        for tokens, got in zip(rows.values(), logits, strict=True):
            assert torch.allclose(got, expected(lm, tokens), atol=1e-9)
        for row, tokens in rows.items():
            tokens.append((7 * step + row) % 384)
        logits = forward(lm, cache.pack([Chunk(row, len(t) - 1, t[-1:]) for row, t in rows.items()]))
    for row, tokens in rows.items():  # take two tokens back and say something else
        cache.truncate(row, len(tokens) - 2)
        tokens[-2:] = [3, 4]
    logits = forward(lm, cache.pack([Chunk(row, len(t) - 2, t[-2:]) for row, t in rows.items()]))
    for got, tokens in zip(logits, rows.values(), strict=True):
        assert torch.allclose(got, expected(lm, tokens), atol=1e-9)
    for row in rows:
        cache.release(row)
    assert cache.used_bytes == 0 and cache.reserved_bytes == 0


@torch.no_grad()
def test_memory_is_what_the_formula_says(lm):
    tokens = list(range(2, 15))
    per_token = 2 * 2 * 2 * 16 * 8  # K and V · layers · KV heads · head dim · bytes
    assert token_bytes(lm) == per_token
    taken = {}
    for kind, make in KINDS.items():
        cache = make(lm)
        cache.open(0, tokens)
        forward(lm, cache.pack([Chunk(0, 0, tokens)]))
        if kind != "recompute":
            cache.commit(0, tokens)
            assert cache.used_bytes == 13 * per_token
        taken[kind] = cache.reserved_bytes
    assert taken == {
        "recompute": 0,
        "contiguous": 40 * per_token,
        "paged": 16 * per_token,
        "paged, blocks of 1": 13 * per_token,
    }


def test_a_full_cache_refuses_and_keeps_what_it_has(lm):
    cache = PagedCache(lm, 3, 4)
    cache.open(0, range(9))
    cache.pack([Chunk(0, 0, list(range(9)))])
    cache.open(1, [1])
    with pytest.raises(OutOfBlocks):
        cache.pack([Chunk(1, 0, [1])])
    assert cache.tables.pool.used == 3


def test_a_cache_larger_than_memory_is_refused_before_it_is_made(lm):
    with pytest.raises(LabkitError, match=r"blocks takes .* GiB"):
        PagedCache(lm, 10**9)
