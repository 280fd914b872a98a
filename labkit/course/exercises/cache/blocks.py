"""Exercises: reading through a block table, giving blocks back, and writing where others may be reading."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from labkit.course.exercise import AnswerRaised, Exercise, expect
from labkit.course.exercises.cache.tensors import judge, normal
from labkit.course.exercises.cache.writing import EXERCISES as WRITING

if TYPE_CHECKING:
    from torch import Tensor


def paged_gather(store: Tensor, table: Tensor, positions: Tensor) -> Tensor:
    """What lies at some positions of a row (labkit's own answer)."""
    size = store.shape[1]
    return store[table[positions // size], positions % size]


def release_row(
    table: Sequence[int], counts: Sequence[int], free: Sequence[int]
) -> tuple[list[int], list[int]]:
    """A row's blocks given back (labkit's own answer)."""
    counts, free = list(counts), list(free)
    for block in table:
        counts[block] -= 1
        if counts[block] == 0:
            free.append(block)
    return counts, free


def _check_gather(fn: Callable, rng: random.Random) -> None:
    import torch

    for blocks, size in ((6, 6), (rng.randint(5, 6), 4), (3, 7), (2, 16)):
        store = normal(rng, 4 * blocks + 8, size, rng.choice([2, 3]))
        ids = rng.sample(range(1, len(store)), blocks)
        ids[0] = min(ids[0], 3 * blocks)  # so that a mistake stays inside the store and can be named
        while ids[0] in ids[1:] or ids == sorted(ids):
            ids = [rng.randint(1, 3 * blocks), *rng.sample(range(1, len(store)), blocks - 1)]
        last = blocks * size - rng.randint(1, size - 1)  # the row ends inside its last block
        some = [rng.randrange(1, last) for _ in range(rng.randint(4, 8))]
        for kind, chosen in (("all in order", list(range(last))), ("some, in any order", some), ("none", [])):
            table, positions = torch.tensor(ids), torch.tensor(chosen, dtype=torch.long)
            given = {"table": ids, "size": size, "positions": chosen, "kind": kind}
            want = store.flatten(0, 1)[[ids[p // size] * size + p % size for p in chosen]]
            got = _gathered(fn, store, table, positions, given)
            judge(got, want, "values", _mistaken(store, ids, chosen), **given)


def _gathered(fn: Callable, store: Tensor, table: Tensor, positions: Tensor, given: dict[str, Any]) -> Any:
    """What the answer returns; an index that lies outside gets a text that says where positions lie."""
    try:
        return fn(store, table, positions)
    except AnswerRaised as raised:
        line = raised.lines[-1] if raised.lines else ""
        fields = {"said": raised.message, "line": line, "entries": len(table), **given}
        expect(raised.kind != "IndexError", "outside", **fields)
        raise


def _mistaken(store: Tensor, table: list[int], positions: list[int]) -> dict[str, Tensor]:
    size, flat = store.shape[1], store.flatten(0, 1)
    slots = {
        "no_table": positions,
        "first_block": [table[0] * size + p for p in positions],
        "swapped": [table[p % size % len(table)] * size + p // size for p in positions],
        "by_entries": [table[p // len(table) % len(table)] * size + p % size for p in positions],
        "one_back": [table[(p - 1) // size] * size + (p - 1) % size for p in positions],
        "one_on": [table[(p + 1) // size % len(table)] * size + (p + 1) % size for p in positions],
    }
    return {name: flat[[slot % len(flat) for slot in chosen]] for name, chosen in slots.items()}


def _check_release(fn: Callable, rng: random.Random) -> None:
    for shared in (0, 2, 3):
        blocks = rng.randint(9, 12)
        ids = rng.sample(range(1, blocks), blocks - 1)  # block 0 is reserved
        table, free = ids[: shared + 2], ids[shared + 2 : shared + 5]
        counts = [0 if block in (0, *free) else 1 for block in range(blocks)]
        for block in table[:shared]:
            counts[block] = rng.randint(2, 4)
        _judge_release(fn(list(table), list(counts), list(free)), table, counts, free)
    _judge_release(fn([], [0, 0, 1], [1]), [], [0, 0, 1], [1])


def _judge_release(got: Any, table: list[int], counts: list[int], free: list[int]) -> None:
    given: dict[str, Any] = {"table": table, "counts": counts, "free": free}
    expect(isinstance(got, list | tuple) and len(got) == 2, "form", got=got, **given)
    after, now_free = got
    whole = all(isinstance(part, list | tuple) and all(type(one) is int for one in part) for part in got)
    expect(whole and len(after) == len(counts), "form", got=got, **given)
    for block in table:
        want = counts[block] - 1
        said = {"block": block, "had": counts[block], "got": after[block], "want": want}
        expect(after[block] != counts[block], "not_counted", **said, **given)
        expect(want == 0 or after[block] != 0, "zeroed", **said, **given)
        expect(after[block] == want, "count", **said, **given)
        expect(want == 0 or block not in now_free, "freed_shared", **said, **given)
        expect(want > 0 or block in now_free, "not_freed", **said, **given)
    expect(0 not in now_free, "reserved", got=now_free, **given)
    expect(len(set(now_free)) == len(now_free), "twice", got=now_free, **given)
    lost = [block for block in free if block not in now_free]
    expect(not lost, "lost", lost=lost, got=now_free, **given)
    others = [block for block in range(len(counts)) if block not in table and after[block] != counts[block]]
    expect(
        not others and len(now_free) == len(free) + sum(after[b] == 0 for b in table),
        "others",
        got=got,
        **given,
    )


EXERCISES = [
    Exercise(
        name="paged_gather",
        notebook="04_cache",
        level="core",
        points=2,
        minutes=6,
        check=_check_gather,
        reference=paged_gather,
    ),
    Exercise(
        name="release_row",
        notebook="04_cache",
        level="extra",
        points=1,
        minutes=3,
        check=_check_release,
        reference=release_row,
    ),
    *WRITING,
]
