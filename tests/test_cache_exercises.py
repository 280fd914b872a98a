"""The exercises of 04_cache: minutes, references against labkit's own, planted cases."""

import random
import runpy
from pathlib import Path

import pytest
import torch

from labkit.cache.prefix import PrefixCache
from labkit.cache.tables import BlockTables
from labkit.course import exercises
from labkit.course.exercise import CheckFailed
from labkit.course.verify import guarded, verify
from labkit.kernels.pages import quantise, slots_of

EXERCISES = exercises.of("04_cache")


def test_core_path_fits_into_the_promised_minutes():
    assert sum(exercise.minutes for exercise in EXERCISES if exercise.level == "core") <= 25
    extra = {exercise.name for exercise in EXERCISES if exercise.level == "extra"}
    assert extra == {"release_row", "room_for_token", "int8_kv"}
    assert len(EXERCISES) >= 6


def own(name):
    return exercises.find(name).reference


def test_labkits_own_answers_are_what_the_cache_does():
    table, positions = torch.randperm(20)[:5], torch.randint(0, 35, (9,))
    store = torch.randn(20, 7, 3)
    assert torch.equal(
        own("paged_gather")(store, table, positions), store.flatten(0, 1)[slots_of(table, positions, 7)]
    )
    x = torch.randn(5, 3, 8)
    assert all(map(torch.equal, own("int8_kv")(x), quantise(x)))


def test_a_look_up_finds_what_labkits_does():
    draw = random.Random()
    cache = PrefixCache(40, 4)
    texts_ = [[draw.randrange(2) for _ in range(draw.randint(5, 14))] for _ in range(30)]
    published = {}
    for text in texts_[:15]:
        name = cache.root()
        for end in range(4, len(text) + 1, 4):
            entry = cache._entries.get((name, tuple(text[end - 4 : end])))
            block = entry.block if entry else cache.pool.allocate()[0]
            name = cache.publish(name, text[end - 4 : end], block)
            published[hash(tuple(text[:end]))] = (block, text[:end])
    for text in texts_:
        want = [entry.block for entry in cache.lookup(text)]
        assert own("prefix_lookup")(text, published, lambda tokens: hash(tuple(tokens)), 4) == want


def test_making_room_takes_and_copies_what_labkits_tables_do():
    tables = BlockTables(9, 4, share=False)
    tables.open(0, [])
    tables.reserve(0, 6)
    tables.commit(0, 6, ())
    tables.fork(0, 1)
    before = list(tables.rows[1].blocks)
    counts = [tables.pool.references(block) for block in range(10)]
    free = [block for block in range(1, 10) if not counts[block]]
    table, after, _, copy = own("room_for_token")(before, 6, counts, free, 4)
    tables.reserve(1, 7)
    assert len(table) == len(tables.rows[1].blocks) and table[0] == tables.rows[1].blocks[0]
    assert [[copy[0]], len([copy[1]])] == [tables.take_copies()[0], 1]
    assert after[before[1]] == tables.pool.references(before[1]) == 1


def said_to(name, wrong, seed):
    """The verdict on a wrong answer of tests/answers."""
    path = Path(__file__).parent / "answers" / "04_cache" / name / f"wrong_{wrong}.py"
    with pytest.raises(CheckFailed) as caught:
        verify(exercises.find(name), guarded(runpy.run_path(str(path))[name]), seed)
    return caught.value


@pytest.mark.parametrize(
    ("name", "wrong", "key", "mentions"),
    [
        ("int8_kv", "kept_axis", "kept_axis", "keepdim=True"),
        ("int8_kv", "per_tensor", "per_tensor", "last axis only"),
        ("int8_kv", "per_token", "per_token", "axes 1 and 2"),
        ("release_row", "reserved", "reserved", "block 0"),
        ("room_for_token", "reserved", "not_from_free", "block 0 is reserved"),
        ("kv_bytes", "not_whole", "not_whole", "float"),
        ("kv_bytes", "two_bytes", "two_bytes", "2 bytes a value"),
        ("kv_bytes", "only_keys", "only_keys", "Keys and values"),
        ("kv_bytes", "query_heads", "query_heads", "not kept"),
        ("kv_bytes", "both_heads", "both_heads", "both counted"),
        ("paged_gather", "outside", "outside", "table[positions]"),
        ("paged_gather", "by_entries", "by_entries", "number of table entries"),
        ("cached_attention", "not_joined", "not_joined", "torch.cat([keys, key[:, None]])"),
        ("cached_attention", "two_axes", "not_joined", "dim=1"),
    ],
)
def test_a_mistake_gets_its_own_verdict(name, wrong, key, mentions):
    for _ in range(10):
        verdict = said_to(name, wrong, random.randrange(10**6))
        assert verdict.key == key
        assert mentions in " ".join(verdict.text.split())


def test_a_whole_number_of_any_kind_counts_bytes():
    def tensor(*sizes):
        return torch.tensor(own("kv_bytes")(*sizes))

    verify(exercises.find("kv_bytes"), guarded(tensor), random.randrange(10**6))


def test_other_errors_keep_their_own_words():
    def broken(query, key, value, keys, values):
        return query @ keys, keys, values

    with pytest.raises(CheckFailed) as caught:
        verify(exercises.find("cached_attention"), guarded(broken), 1)
    assert caught.value.key == "raised"
