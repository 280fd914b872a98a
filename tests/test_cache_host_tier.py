"""The prefix cache's second level: what is evicted comes back bit for bit, and only to those whose text it is."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch
from test_batch_load import EngineUnderLoad, run_machine
from tiny_models import VOCAB, tiny_llama, tiny_tokenizer

from labkit.batch import model_runner
from labkit.batch.build import engine_for
from labkit.batch.request import Reason, Request
from labkit.batch.sampling import Sampling
from labkit.cache.host_store import HostStore
from labkit.cache.host_tier import HostTier
from labkit.cache.paged import ContiguousCache, PagedCache
from labkit.cache.tables import BlockTables
from labkit.errors import LabkitError
from labkit.models import LM

PLENTY = 2**30
FIRST, SECOND, LAST = [1, 2, 3, 4], [5, 6, 7, 8], [9]


def lm_of(seed=0, dtype=torch.float64):
    model = tiny_llama(seed, dtype)
    return LM(model, tiny_tokenizer(), "tiny", torch.device("cpu"), dtype)


@pytest.fixture(scope="module")
def lm():
    return lm_of()


def pages_of(cache, row):
    """A copy of everything in a row's blocks."""
    blocks = cache.tables.rows[row].blocks
    return [tensor[blocks].clone() for pages in cache.layers for tensor in pages.tensors]


def same(ones, others):
    bits = [[tensor.view(torch.uint8) for tensor in each] for each in (ones, others)]
    return len(ones) == len(others) and all(map(torch.equal, *bits))


def begin(cache, row, tokens, salt=""):
    """Open a row with random content, NaNs among it, in the blocks that it has to compute."""
    found = cache.tables.open(row, tokens, salt)
    cache.tables.reserve(row, len(tokens))
    cache.run_copies()
    for pages in cache.layers:
        for tensor in pages.tensors:
            for block in cache.tables.rows[row].blocks[found // cache.tables.block_size :]:
                raw = tensor[block].view(torch.uint8)
                raw.copy_(torch.randint(0, 256, raw.shape, dtype=torch.uint8))
    return found


def serve(cache, row, tokens, salt=""):
    """Begin a row, publish it and end it; returns what its blocks held."""
    begin(cache, row, tokens, salt)
    cache.tables.commit(row, len(tokens), tokens)
    content = pages_of(cache, row)
    cache.release(row)
    return content


def poison(cache):
    for pages in cache.layers:
        for tensor in pages.tensors:
            tensor.fill_(77)


@pytest.mark.parametrize("quantised", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_what_was_evicted_comes_back_bit_for_bit(dtype, quantised):
    cache = PagedCache(lm_of(dtype=dtype), 12, 4, quantised=quantised, host=HostStore(PLENTY))
    texts = [[draw + 3 * place for place in range(12)] for draw in range(2)]
    content = [serve(cache, number, text) for number, text in enumerate(texts)]
    assert cache.tables.pool.drop_cached() == 6 and len(cache.tables.prefix) == 0
    poison(cache)
    for number, text in enumerate(texts):
        assert cache.open(number, [*text, 0]) == 12
        assert same(pages_of(cache, number), content[number])
    assert cache.open(2, texts[0]) == 8  # published again; something is left to compute
    statistics = cache.tables.prefix.statistics
    assert (statistics.found, statistics.restored) == (32, 24)
    for row in range(3):
        cache.release(row)
    assert cache.tables.pool.used == 0


class TestChain:
    """Blocks above and below, in every order."""

    @pytest.fixture
    def cache(self, lm):
        return PagedCache(lm, 8, 4, host=HostStore(PLENTY))

    def restored(self, cache):
        return cache.tables.prefix.statistics.restored

    def test_the_device_goes_on_where_the_host_began(self, cache):
        text = FIRST + SECOND
        begin(cache, 0, FIRST)
        begin(cache, 1, text)  # computes the same block once more
        cache.commit(0, FIRST)
        cache.commit(1, text)
        cache.release(0)
        assert cache.tables.pool.drop_cached() == 1  # the first block; the second is held
        assert cache.open(2, text + LAST) == 8 and self.restored(cache) == 4
        assert cache.tables.rows[2].blocks[1] == cache.tables.rows[1].blocks[1]

    def test_a_block_computed_again_leads_to_its_descendants_on_the_host(self, cache):
        begin(cache, 1, FIRST)
        want = serve(cache, 0, FIRST + SECOND)
        cache.tables.pool.drop_cached()
        cache.commit(1, FIRST)
        assert cache.open(2, FIRST + SECOND + LAST) == 8 and self.restored(cache) == 4
        assert same([tensor[1] for tensor in pages_of(cache, 2)], [tensor[1] for tensor in want])

    def test_a_name_outlives_the_copy_that_makes_room_for_another(self, cache):
        store = cache.tables.prefix._store
        serve(cache, 5, LAST * 4)
        cache.tables.pool.drop_cached()
        store.budget = store.stats.stored_bytes * 3 // 2  # one block
        begin(cache, 0, FIRST)
        begin(cache, 1, FIRST + SECOND)
        cache.commit(0, FIRST)
        cache.commit(1, FIRST + SECOND)
        cache.release(0)
        cache.tables.pool.drop_cached()
        begin(cache, 2, [40] * 20)
        serve(cache, 3, [41] * 4)
        assert cache.tables.pool.available == len(store) == 1
        before = set(store._entries)
        assert cache.open(4, FIRST + SECOND + LAST) == 8 and self.restored(cache) == 4
        assert len(store) == 1 and before.isdisjoint(store._entries)

    def test_equal_tokens_behind_another_beginning_are_not_found(self, cache):
        serve(cache, 0, FIRST + SECOND)
        cache.tables.pool.drop_cached()
        assert cache.open(1, SECOND + LAST) == 0
        assert cache.open(2, SECOND + SECOND + LAST) == 0
        assert cache.open(3, FIRST + FIRST + LAST) == 4

    def test_salts_share_nothing(self, cache):
        want = {salt: serve(cache, 0, FIRST, salt) for salt in ("", "a", "b")}
        cache.tables.pool.drop_cached()
        assert cache.tables.open(9, FIRST + LAST, "c") == 0
        for row, salt in enumerate(want):
            assert cache.tables.open(row, FIRST + LAST, salt) == 4
            assert same(pages_of(cache, row), want[salt])

    def test_two_caches_of_one_store_share_its_budget_and_no_block(self, lm):
        store = HostStore(PLENTY)
        caches = [PagedCache(lm, 8, 4, host=store) for _ in range(2)]
        want = [serve(cache, 0, FIRST) for cache in caches]
        for cache in caches:
            cache.tables.pool.drop_cached()
        assert len(store) == 2
        for cache, content in zip(caches, want, strict=True):
            assert cache.open(0, FIRST + LAST) == 4 and same(pages_of(cache, 0), content)
        caches[0].close()
        assert len(store) == 1

    def test_no_more_is_brought_back_than_there_is_room_for(self, cache):
        text = list(range(16))
        serve(cache, 0, text)
        cache.tables.pool.drop_cached()
        begin(cache, 1, [40] * 24)  # six of the eight blocks
        assert cache.open(2, text + LAST) == 8 and cache.tables.pool.available == 0
        cache.release(1)
        assert cache.open(3, text + LAST) == 16

    def test_what_the_store_lost_is_computed(self, cache):
        store = cache.tables.prefix._store
        serve(cache, 0, FIRST + SECOND)
        cache.tables.pool.drop_cached()
        (*_, packed), key = store._entries[next(iter(store._entries))], next(iter(store._entries))
        broken = dataclasses.replace(packed, checksum=packed.checksum ^ 1)
        store._entries[key] = [store._entries[key][0], broken]  # evicted first: the second block
        assert cache.open(1, FIRST + SECOND + LAST) == 4
        assert key not in store and cache.tables.pool.used == 1
        cache.release(1)
        cache.tables.pool.drop_cached()
        store.clear()
        assert cache.open(2, FIRST + LAST) == 0


class TestCopiesThatAreDue:
    """A row writes into a shared block after a copy; the copy is made with the next step, and evictions before."""

    @pytest.fixture
    def cache(self, lm):
        """Row 1 is about to copy the second block of FIRST + SECOND, and LAST * 4 is on the host."""
        cache = PagedCache(lm, 3, 4, host=HostStore(PLENTY))
        self.below = serve(cache, 0, LAST * 4)
        cache.tables.pool.drop_cached()
        begin(cache, 0, FIRST + SECOND)
        cache.commit(0, FIRST + SECOND)
        self.source = self.second(cache, 0)
        cache.tables.fork(0, 1, 7)
        cache.release(0)
        cache.tables.reserve(1, 8)
        assert cache.tables.pool.cached == 1
        return cache

    def second(self, cache, row):
        return [tensor[1] for tensor in pages_of(cache, row)]

    @pytest.mark.parametrize("copied_before", [False, True])
    def test_a_source_is_read_before_it_is_overwritten(self, cache, copied_before, monkeypatch):
        if copied_before:  # to the host: nobody reads it when it is evicted
            monkeypatch.setattr(cache.tables.prefix._store, "touch", lambda key: True)
        assert cache.open(2, LAST * 5) == 4
        cache.run_copies()
        assert same(self.second(cache, 1), self.source) and same(pages_of(cache, 2), self.below)

    def test_a_target_that_was_given_up_is_not_written_later(self, cache):
        cache.release(1)
        assert cache.tables.pool.free == 1  # the target
        assert cache.open(2, LAST * 5) == 4
        cache.run_copies()
        assert same(pages_of(cache, 2), self.below)

    def test_one_that_fails_is_not_passed_over(self, cache, monkeypatch):
        monkeypatch.setattr("labkit.cache.paged.copy_blocks", lambda *anything: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            cache.tables.pool.drop_cached()

    def test_a_target_is_written_before_it_goes_to_the_host(self, cache):
        other = FIRST + SECOND[:3] + LAST
        cache.commit(1, other)
        cache.release(1)
        cache.tables.pool.drop_cached()
        poison(cache)
        assert cache.open(2, other + LAST) == 8 and same(self.second(cache, 2), self.source)


@pytest.mark.parametrize("blocks", [0, 1, 3, 7])
def test_the_budget_holds_and_a_beginning_is_kept_before_an_end(lm, blocks):
    cache = PagedCache(lm, 12, 4, host=HostStore(0))
    whole = serve(cache, 0, list(range(24)))
    size = sum(tensor[0].nbytes for tensor in whole)  # noise: nothing of it shrinks
    store = cache.tables.prefix._store
    store.budget = blocks * size
    cache.tables.pool.drop_cached()
    assert store.stats.stored_bytes == min(blocks, 6) * size
    assert cache.open(1, [*range(24), 0]) == 4 * min(blocks, 6)
    cache.release(1)
    for number in range(30):
        serve(cache, 2, [100 + number] * 8)
        assert store.stats.stored_bytes <= store.budget
        assert len(cache.tables.prefix._below) <= 2 * len(store) + 1


def test_a_block_that_comes_back_is_packed_once(lm, monkeypatch):
    cache = PagedCache(lm, 4, 4, host=HostStore(PLENTY))
    serve(cache, 0, FIRST)
    cache.tables.pool.drop_cached()
    calls = []
    monkeypatch.setattr(cache.tables.prefix._store, "put", lambda *anything: calls.append(anything) or 1 / 0)
    for _ in range(3):
        assert cache.open(1, FIRST + LAST) == 4
        cache.release(1)
        cache.tables.pool.drop_cached()
    assert not calls
    serve(cache, 0, SECOND)  # a copy that fails loses the block, not the pool
    assert cache.tables.pool.drop_cached() == 1 and cache.tables.pool.free == 4
    assert cache.open(1, SECOND + LAST) == 0


def test_without_sharing_there_is_nothing_to_keep(lm):
    with pytest.raises(LabkitError, match="sharing is off"):
        PagedCache(lm, 4, 4, share=False, host=HostStore(PLENTY))
    assert not isinstance(ContiguousCache(lm, 1, 8).tables.prefix, HostTier)


@pytest.mark.parametrize("how", ["raises", "nan"])
def test_what_a_failed_step_wrote_is_never_kept(lm, monkeypatch, how):
    store, prompt = HostStore(PLENTY), list(range(1, 30))

    def fails(lm, pack):
        logits = plain(lm, pack)
        return logits * torch.nan if how == "nan" else 1 / 0

    plain = model_runner.forward
    with engine_for(lm, blocks=10, block_size=4, host=store) as engine:
        monkeypatch.setattr(model_runner, "forward", fails)
        (ticket,) = engine.run([Request(prompt=prompt, max_tokens=4)])
        assert ticket.first.reason is Reason.FAILED
        monkeypatch.setattr(model_runner, "forward", plain)
        pool = engine.scheduler.tables.pool
        assert pool.cached == 0 and pool.drop_cached() == 0 and len(store) == 0
        (ticket,) = engine.run([Request(prompt=prompt, max_tokens=4)])
        assert ticket.cached_tokens == 0 and pool.drop_cached() > 0 and len(store) > 0
        (again,) = engine.run([Request(prompt=prompt, max_tokens=4)])
        assert again.cached_tokens == 28 and again.first.tokens == ticket.first.tokens
    assert len(store) == 0  # a closed engine leaves nothing behind


def load_of(draw):
    """Requests that begin alike, with salts, several samples and draws, and the step in which each comes."""
    beginnings = [[draw.randrange(1, VOCAB) for _ in range(draw.randint(8, 40))] for _ in range(3)]
    requests = [
        Request(
            prompt=draw.choice(beginnings) + [draw.randrange(1, VOCAB) for _ in range(draw.randint(1, 12))],
            max_tokens=draw.randint(1, 12),
            samples=draw.choice((1, 1, 1, 2)),
            sampling=draw.choice((Sampling(), Sampling(temperature=1.0, seed=draw.randrange(99)))),
            ignore_eos=True,
            salt=draw.choice(("", "", "other")),
        )
        for _ in range(14)
    ]
    return requests, [draw.randint(0, 4) for _ in requests], [draw.random() < 0.15 for _ in requests]


def run_load(lm, load, host, **sizes):
    with engine_for(lm, host=host, **sizes) as engine:
        tickets = []
        for request, steps, cancelled in zip(*load, strict=True):
            tickets.append(engine.submit(request))
            for _ in range(steps):
                engine.step()
                assert host is None or host.stats.stored_bytes <= host.budget
            if cancelled:
                engine.cancel(tickets[-1])
        engine.drain()
        tables = engine.scheduler.tables
        assert engine.idle and tables.pool.used == 0 and not tables.rows
        told = (engine.scheduler.preemptions, tables.prefix.statistics)
    return [[sample.tokens for sample in ticket.samples] for ticket in tickets], *told


@pytest.mark.parametrize("quantised", [False, True])
def test_an_engine_says_the_same_with_a_host_store(lm, quantised):
    preemptions = restored = 0
    for case in range(10):
        draw = random.Random(case)
        load, size = load_of(draw), draw.choice((1, 4, 8))
        sizes = {
            "blocks": -(-64 // size) + draw.randint(0, 8 // size),  # just enough for the longest
            "block_size": size,
            "rows": draw.randint(2, 6),
            "step_tokens": draw.choice((9, 32, 500)),
            "quantised": quantised,
        }
        want, *_ = run_load(lm, load, None, **sizes)
        store = HostStore(draw.choice((30_000, 200_000, PLENTY)))
        got, gave_way, statistics = run_load(lm, load, store, **sizes)
        for cancelled, ours, theirs in zip(load[2], got, want, strict=True):
            for mine, other in zip(ours, theirs, strict=True):
                short = min(len(mine), len(other)) if cancelled else None  # it was further, or less far
                assert mine[:short] == other[:short]
        assert len(store) == 0
        assert statistics.restored <= statistics.found < statistics.looked_up
        preemptions, restored = preemptions + gave_way, restored + statistics.restored
    assert preemptions > 5 and restored > 200


class EngineWithHost(EngineUnderLoad):
    """Under any load, with steps in flight and failing, every token is a hash of what its row sees."""

    def make_tables(self, blocks, size, share):
        def read(block):
            pairs = [self.runner.kv[block * size + place] for place in range(size)]
            return [torch.tensor(pairs, dtype=torch.float32)]

        def write(block, content):
            for place, pair in enumerate(content[0].int().tolist()):
                self.runner.kv[block * size + place] = tuple(pair)

        self.store = HostStore((100, 10**6, 10**6)[blocks % 3])
        prefix = HostTier(blocks, size, self.store, lambda: self.runner.run_copies(), read, write)
        return BlockTables(blocks, size, share=share, prefix=prefix)

    def check_idle(self):
        super().check_idle()
        assert self.store.stats.stored_bytes <= self.store.budget
        assert len(self.tables.prefix._below) <= 2 * len(self.store) + 1


def test_every_request_says_what_it_says_alone():
    run_machine(EngineWithHost, 150)
