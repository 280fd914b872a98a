"""The three caches behind one interface: swapped for each other, they change memory and time and no token."""

import random

import pytest
import torch
from tiny_models import VOCAB, tiny_llama, tiny_tokenizer

from labkit.cache import bench
from labkit.cache.attention import install, remove
from labkit.cache.pack import Chunk, KVCache, forward
from labkit.cache.paged import ContiguousCache, PagedCache, token_bytes
from labkit.cache.recompute import Recompute
from labkit.models import LM


@pytest.fixture(scope="module")
def lm():
    model = tiny_llama(dtype=torch.float64).eval()
    return LM(model, tiny_tokenizer(), "tiny", torch.device("cpu"), torch.float64)


@torch.inference_mode()
def serve(lm: LM, cache: KVCache, prompts: list[list[int]], count: int) -> list[list[int]]:
    rows = [list(prompt) for prompt in prompts]
    done = [cache.open(number, row) for number, row in enumerate(rows)]
    install(lm.model)
    try:
        for _ in range(count):
            chunks = [Chunk(number, done[number], row[done[number] :]) for number, row in enumerate(rows)]
            for number, token in enumerate(forward(lm, cache.pack(chunks)).argmax(-1).tolist()):
                cache.commit(number, rows[number])
                done[number] = len(rows[number])
                rows[number].append(token)
    finally:
        remove(lm.model)
    return rows


def test_all_three_give_the_tokens_of_the_plain_model(lm):
    draw = random.Random()
    prompts = [[draw.randrange(VOCAB) for _ in range(draw.randint(1, 40))] for _ in range(4)]
    want = []
    for prompt in prompts:
        row = list(prompt)
        for _ in range(5):
            with torch.inference_mode():
                row.append(int(lm.model(torch.tensor([row])).logits[0, -1].argmax()))
        want.append(row)
    caches = (Recompute(lm), ContiguousCache(lm, 4, 64), PagedCache(lm, 200, draw.choice([1, 5, 16])))
    for cache in caches:
        assert serve(lm, cache, prompts, 5) == want
    stored = sum(len(row) - 1 for row in want) * token_bytes(lm)
    nothing, contiguous, paged = caches
    assert nothing.reserved_bytes == nothing.used_bytes == 0
    assert contiguous.used_bytes == pytest.approx(stored)
    assert contiguous.reserved_bytes == 4 * 64 * token_bytes(lm)
    assert stored <= paged.reserved_bytes < contiguous.reserved_bytes
    for cache in caches:
        cache.truncate(0, len(want[0]) - 1)
        for row in range(4):
            cache.release(row)
        assert cache.reserved_bytes == 0


def test_a_second_row_of_the_same_text_finds_it_only_where_blocks_are_shared(lm):
    text = [7 * step % VOCAB for step in range(33)]
    for cache, found in ((Recompute(lm), 0), (ContiguousCache(lm, 2, 64), 0), (PagedCache(lm, 9, 8), 32)):
        serve(lm, cache, [text], 1)
        cache.commit(0, text)
        assert cache.open(1, text) == found


def test_the_benchmark_of_prefixes_runs_as_often_as_it_is_told(lm):
    text = [7 * step % VOCAB for step in range(300)]
    figures = bench.prefix(lm, text, shared=64, own=8, repeats=2, warmup=1)
    assert figures["found"] == {"cold": 0, "warm": 64}
    assert len(figures["runs"]["cold"].seconds) == 2
    assert figures["ttft"]["cold"] > 0
