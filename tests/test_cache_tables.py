"""Blocks, prefixes and tables: who holds what, who finds what, and what is copied before it is written."""

from __future__ import annotations

import pytest

from labkit.cache.pool import BlockPool, OutOfBlocks
from labkit.cache.prefix import PrefixCache
from labkit.cache.tables import BlockTables
from labkit.errors import LabkitError


def test_blocks_are_counted_and_block_zero_is_nobodys():
    pool = BlockPool(4)
    taken = pool.allocate(3)
    assert sorted(taken) == [1, 2, 3] and (pool.used, pool.free, pool.cached) == (3, 1, 0)
    pool.share(taken[:1])
    pool.release(taken)
    assert pool.used == 1 and pool.references(taken[0]) == 1
    with pytest.raises(OutOfBlocks, match="4 more KV blocks are needed and 3 are available"):
        pool.allocate(4)
    assert pool.used == 1
    pool.release(taken[:1])
    with pytest.raises(LabkitError, match="once too often"):
        pool.release(taken[:1])
    with pytest.raises(LabkitError, match="is free and cannot be shared"):
        pool.share(taken[:1])


def test_kept_blocks_are_evicted_least_recently_used_first_and_only_when_needed():
    gone = []
    pool = BlockPool(4, evicted=gone.append)
    blocks = pool.allocate(4)
    for block in blocks:
        pool.keep(block)
    pool.release([blocks[0]])
    pool.release([blocks[1]])
    pool.share([blocks[0]])
    pool.release([blocks[0]])
    assert pool.cached == 2 and not gone
    assert pool.allocate(1) == [blocks[1]] and gone == [blocks[1]]
    assert not pool.kept(blocks[1])
    assert pool.drop_cached() == 1 and gone == [blocks[1], blocks[0]]


def test_the_end_of_a_row_is_evicted_before_its_beginning():
    gone = []
    pool = BlockPool(3, evicted=gone.append)
    blocks = pool.allocate(3)
    for block in blocks:
        pool.keep(block)
    pool.release(blocks)
    pool.allocate(2)
    assert gone == [blocks[2], blocks[1]]


def test_a_prefix_is_found_by_tokens_and_by_what_stands_before_them():
    cache = PrefixCache(8, 2)
    blocks = cache.pool.allocate(3)
    name = cache.root()
    for start, block in zip((0, 2, 4), blocks, strict=True):
        name = cache.publish(name, [1, 1], block) if start else cache.publish(name, [5, 6], block)
    assert [entry.block for entry in cache.lookup([5, 6, 1, 1, 1, 1, 9])] == blocks
    assert cache.lookup([1, 1, 1, 1, 9]) == []  # the same tokens after another beginning
    assert [entry.block for entry in cache.lookup([5, 6, 1, 1, 1, 2, 9])] == blocks[:2]
    assert cache.lookup([5, 6, 1, 1, 1, 1, 9], salt="other model") == []
    assert len(cache.lookup([5, 6, 1, 1, 1, 1])) == 2  # something must be left to compute


def test_an_evicted_block_takes_its_descendants_out_of_reach():
    cache = PrefixCache(3, 1)
    first, second = cache.pool.allocate(2)
    name = cache.publish(cache.root(), [1], first)
    cache.publish(name, [2], second)
    cache.pool.release([first])
    cache.pool.allocate(2)  # the free one, and `first`
    again = cache.publish(cache.root(), [1], cache.pool.allocate(0) or 3)
    assert again != name and [entry.block for entry in cache.lookup([1, 2, 9])] == [3]


def test_equal_blocks_are_published_once_and_statistics_count_tokens():
    tables = BlockTables(8, 2)
    for row in (1, 2):
        assert tables.open(row, [1, 2, 3, 4, 5]) == 0
        tables.reserve(row, 5)
    for row in (1, 2):
        tables.commit(row, 5, [1, 2, 3, 4, 5])
    assert len(tables.prefix) == 2
    assert tables.open(3, [1, 2, 3, 4, 9]) == 4
    assert tables.rows[3].blocks == tables.rows[1].blocks[:2]
    assert tables.prefix.statistics.hit_rate == 4 / 15


def test_reserving_too_much_changes_nothing():
    tables = BlockTables(3, 2)
    tables.open(1, [1] * 9)
    tables.reserve(1, 3)
    before = list(tables.rows[1].blocks)
    with pytest.raises(OutOfBlocks):
        tables.reserve(1, 8)
    assert tables.rows[1].blocks == before and tables.pool.used == 2
    assert tables.missing(1, 6) == 1 and tables.missing(1, 2) == 0


def test_a_fork_copies_the_block_that_it_writes_and_shares_the_rest():
    tables = BlockTables(8, 4, share=False)
    tables.open(1, range(6))
    tables.reserve(1, 6)
    tables.commit(1, 6, list(range(6)))
    tables.fork(1, 2)
    shared = tables.rows[1].blocks
    tables.reserve(2, 7)
    assert tables.take_copies() == ([shared[1]], [tables.rows[2].blocks[1]])
    assert tables.rows[2].blocks[0] == shared[0] and tables.pool.references(shared[0]) == 2
    tables.reserve(1, 7)  # the only holder now
    assert tables.take_copies() == ([], [])
    tables.release(1)
    tables.release(2)
    assert tables.pool.free == 8


def test_a_copy_of_a_copy_is_taken_from_the_original():
    tables = BlockTables(8, 4, share=False)
    tables.open(1, range(2))
    tables.reserve(1, 2)
    tables.commit(1, 2, [0, 1])
    origin = tables.rows[1].blocks[0]
    tables.fork(1, 2)
    tables.reserve(2, 3)
    tables.fork(2, 3)
    tables.reserve(3, 3)
    sources, targets = tables.take_copies()
    assert sources == [origin, origin]
    assert targets == [tables.rows[2].blocks[0], tables.rows[3].blocks[0]]


def test_a_published_block_is_copied_before_it_is_written_again():
    tables = BlockTables(8, 4)
    tables.open(1, range(8))
    tables.reserve(1, 8)
    tables.commit(1, 8, list(range(8)))
    tables.fork(1, 2, 7)
    tables.release(1)
    last = tables.rows[2].blocks[1]
    tables.reserve(2, 8)
    assert tables.take_copies()[0] == [last] and tables.pool.cached == 1


def test_truncation_returns_blocks_and_stops_at_what_others_may_have_found():
    tables = BlockTables(8, 4)
    tables.open(1, range(11))
    tables.reserve(1, 11)
    tables.commit(1, 6, list(range(11)))
    tables.truncate(1, 5)
    assert len(tables.rows[1].blocks) == 2 and tables.rows[1].length == 5 and tables.pool.free == 6
    with pytest.raises(LabkitError, match="1 blocks of it are published"):
        tables.truncate(1, 3)


def test_waste_counts_each_block_once():
    tables = BlockTables(8, 4, share=False)
    assert tables.waste == 0
    tables.open(1, range(5))
    tables.reserve(1, 5)
    tables.commit(1, 5, list(range(5)))
    assert tables.waste == pytest.approx(3 / 8)
    tables.fork(1, 2)
    assert tables.waste == pytest.approx(3 / 8) and tables.stored_tokens == 10


@pytest.mark.parametrize("call", [lambda: BlockPool(0), lambda: BlockTables(4, 0)])
def test_sizes_below_one_are_refused(call):
    with pytest.raises(LabkitError):
        call()


def test_a_row_is_opened_once():
    tables = BlockTables(4, 2)
    tables.open(1, [1])
    for begin in (lambda: tables.open(1, [1]), lambda: tables.fork(1, 1)):
        with pytest.raises(LabkitError, match="open already"):
            begin()
