"""Three caches behind one interface: swapped for each other, they change memory and time and no logit."""

from __future__ import annotations

import random

import pytest
import torch
from tiny_models import VOCAB, tiny_llama, tiny_tokenizer

from labkit.cache import (
    Chunk,
    ContiguousCache,
    HostStore,
    OutOfBlocks,
    PagedCache,
    Recompute,
    bench,
    forward,
    install,
    remove,
    token_bytes,
)
from labkit.errors import LabkitError
from labkit.models import LM

KINDS = {
    "recompute": lambda lm: Recompute(lm),
    "contiguous": lambda lm: ContiguousCache(lm, rows=4, capacity=64),
    "paged": lambda lm: PagedCache(lm, 80, 4),
    "paged, blocks of 5": lambda lm: PagedCache(lm, 50, 5),
    "paged, blocks of 1": lambda lm: PagedCache(lm, 250, 1, share=False),
}


@pytest.fixture
def lm():
    model = tiny_llama(2, torch.float64)
    install(model)
    yield LM(model, tiny_tokenizer(), "tiny", torch.device("cpu"), torch.float64)
    remove(model)


def expected(lm, rows):
    """Logits after all tokens of each row, from transformers' own attention."""
    remove(lm.model)
    logits = [lm.model(torch.tensor([tokens])).logits[0, -1] for tokens in rows]
    install(lm.model)
    return torch.stack(logits)


def run(lm, cache, rows, done):
    """Logits after all tokens of each row, the first `done` of which need not be run."""
    chunks = [Chunk(row, start, t[start:]) for (row, t), start in zip(rows.items(), done, strict=True)]
    return forward(lm, cache.pack(chunks))


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_each_kind_gives_the_models_logits(lm, kind):
    draw, cache = random.Random(), KINDS[kind](lm)
    rows = {row: [draw.randrange(VOCAB) for _ in range(draw.randint(1, 40))] for row in (1, 7, 4, 2)}
    done = [cache.open(row, tokens) for row, tokens in rows.items()]
    for _ in range(6):
        logits = run(lm, cache, rows, done)
        assert torch.allclose(logits, expected(lm, rows.values()), atol=1e-9)
        done = [len(tokens) for tokens in rows.values()]
        for (row, tokens), token in zip(rows.items(), logits.argmax(-1).tolist(), strict=True):
            cache.commit(row, tokens[:-2])
            tokens.append(token)
    for row, tokens in rows.items():  # take two tokens back and say something else
        cache.truncate(row, len(tokens) - 3)
        tokens[-3:] = [3, 4]
    logits = run(lm, cache, rows, [len(tokens) - 2 for tokens in rows.values()])
    assert torch.allclose(logits, expected(lm, rows.values()), atol=1e-9)
    for row, tokens in rows.items():
        cache.commit(row, tokens)
    stored, longest = sum(map(len, rows.values())) * token_bytes(lm), 4 * 64 * token_bytes(lm)
    reserved = {"recompute": 0, "contiguous": longest}.get(kind, cache.reserved_bytes)
    assert cache.reserved_bytes == reserved and cache.used_bytes == (stored if reserved else 0)
    assert kind in ("recompute", "contiguous") or stored <= reserved < longest
    for row in rows:
        cache.release(row)
    assert cache.used_bytes == cache.reserved_bytes == 0


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_second_row_of_the_same_text_finds_it_only_where_blocks_are_shared(lm, kind):
    cache, text = KINDS[kind](lm), [7 * step % VOCAB for step in range(33)]
    for row, found in ((0, 0), (1, {"paged": 32, "paged, blocks of 5": 30}.get(kind, 0))):
        assert cache.open(row, text) == found
        assert torch.allclose(run(lm, cache, {row: text}, [found]), expected(lm, [text]), atol=1e-9)
        cache.commit(row, text)


@torch.no_grad()
def test_memory_is_what_the_formula_says(lm):
    tokens, taken = list(range(2, 15)), {}
    per_token = 2 * 2 * 2 * 16 * 8  # K and V · layers · KV heads · head dim · bytes
    assert token_bytes(lm) == per_token
    for kind, make in KINDS.items():
        cache = make(lm)
        run(lm, cache, {0: tokens}, [cache.open(0, tokens)])
        cache.commit(0, tokens)
        assert cache.used_bytes == (0 if kind == "recompute" else 13 * per_token)
        taken[kind] = cache.reserved_bytes / per_token
    assert list(taken.values()) == [0, 64, 16, 15, 13]


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


def test_the_benchmark_of_prefixes_runs_as_often_as_it_is_told(lm):
    text = [7 * step % VOCAB for step in range(300)]
    for host, found in (
        (None, {"cold": 0, "warm": 64}),
        (HostStore(2**30), {"cold": 0, "warm": 64, "host": 64}),
    ):
        figures = bench.prefix(lm, text, shared=64, own=8, repeats=2, warmup=1, host=host)
        assert figures["found"] == found and figures["ttft"].keys() == found.keys()
        assert len(figures["runs"]["cold"].seconds) == 2 and min(figures["ttft"].values()) > 0
    assert len(host) == 0 and host.stats.hits == 2 * 4
