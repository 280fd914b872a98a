"""Exercise: room for one more token, with copy-on-write."""

import random
from collections.abc import Callable, Sequence
from typing import Any

from labkit.course.exercise import Exercise, expect

State = tuple[list[int], list[int], list[int], tuple[int, int] | None]


def room_for_token(
    table: Sequence[int], length: int, counts: Sequence[int], free: Sequence[int], block_size: int
) -> State | None:
    """Blocks after making room for the token at position `length` (labkit's own answer)."""
    table, counts, free = list(table), list(counts), list(free)
    full = length % block_size == 0
    if not full and counts[table[-1]] == 1:
        return table, counts, free, None
    if not free:
        return None
    new = free.pop()
    counts[new] = 1
    if full:
        table.append(new)
        return table, counts, free, None
    old, table[-1] = table[-1], new
    counts[old] -= 1
    return table, counts, free, (old, new)


def _check(fn: Callable, rng: random.Random) -> None:
    for case in (
        "grow",
        "alone",
        "shared",
        "first",
        "last place",
        "nearly",
        "grow, none free",
        "shared, none free",
    ):
        _judge(fn, rng, case)


def _judge(fn: Callable, rng: random.Random, case: str) -> None:
    size, held = rng.choice([4, 5, 7]), rng.randint(2, 4)
    inside = {"grow": 0, "grow, none free": 0, "last place": size - 1, "nearly": 1}.get(
        case, rng.randint(2, size - 2)
    )
    total = held + rng.randint(5, 7)
    ids = rng.sample(range(1, total), total - 1)  # block 0 is reserved
    table, free = ids[:held], ids[held : held + 3]
    if case == "first":
        table, held, inside = [], 0, 0
    length = held * size if inside == 0 else (held - 1) * size + inside
    if "none free" in case:
        free = []
    counts = [0 if block in (0, *free) else 1 for block in range(total)]
    if held:
        counts[table[0]] = rng.randint(2, 4)  # a shared beginning, which nobody writes to
    if "shared" in case or "grow" in case:
        counts[table[-1]] = rng.randint(2, 4)
    given: dict[str, Any] = {
        "table": table, "length": length, "counts": counts, "free": free, "size": size,
        "place": "the first of a new block" if inside == 0 else f"number {inside} of block {table[-1]}",
    }  # fmt: skip
    got = fn(list(table), length, list(counts), list(free), size)
    if "none free" in case:
        expect(got is None, "no_block_left", got=got, **given)
        return
    expect(got is not None, "gave_up", **given)
    _judge_state(got, given, grow=inside == 0, shared=case == "shared")


def _judge_state(got: Any, given: dict[str, Any], *, grow: bool, shared: bool) -> None:
    expect(isinstance(got, list | tuple) and len(got) == 4, "form", got=got, **given)
    table, counts, free, copy = got
    lists = all(
        isinstance(part, list | tuple) and all(type(one) is int for one in part)
        for part in (table, counts, free)
    )
    expect(lists and len(counts) == len(given["counts"]), "form", got=got, **given)
    before, had = given["table"], given["counts"]
    if grow:
        expect(len(table) > len(before), "not_grown", got=list(table), **given)
    else:
        expect(len(table) <= len(before), "grown_early", got=list(table), **given)
    if not grow and not shared:
        expect(list(table) == before and copy is None, "copied_alone", got=got, **given)
    expect(
        list(table[: len(before) - shared]) == before[: len(before) - shared],
        "table",
        got=list(table),
        **given,
    )
    if shared:
        _judge_copy(got, given)
    else:
        expect(copy is None, "copy_of_nothing", got=copy, **given)
    new = [block for block in table if block not in before]
    expect(all(block in given["free"] for block in new), "not_from_free", new=new, **given)
    expect(not any(block in free for block in new), "still_free", new=new, got=list(free), **given)
    expect(
        all(counts[block] == 1 for block in new), "new_count", new=new, got=[counts[b] for b in new], **given
    )
    kept = sorted(block for block in given["free"] if block not in new)
    expect(sorted(free) == kept, "free", got=list(free), want=kept, **given)
    old = before[-1] if shared else None
    want = [1 if b in new else count - (b == old) for b, count in enumerate(had)]
    expect(list(counts) == want, "counts", got=list(counts), want=want, **given)


def _judge_copy(got: Any, given: dict[str, Any]) -> None:
    """The last block is shared: the row must have a copy of its own."""
    table, counts, _, copy = got
    old = given["table"][-1]
    said = {"old": old, "holders": given["counts"][old]}
    expect(table[-1] != old, "wrote_into_shared", **said, **given)
    expect(isinstance(copy, list | tuple) and len(copy) == 2, "no_copy", got=copy, **said, **given)
    want = (old, table[-1])
    expect(tuple(copy) != want[::-1], "copy_backwards", got=copy, want=want, **said, **given)
    expect(tuple(copy) == want, "copy", got=copy, want=want, **said, **given)
    expect(counts[old] != given["counts"][old], "old_count", got=counts[old], **said, **given)


EXERCISES = [
    Exercise(
        name="room_for_token",
        notebook="04_cache",
        level="extra",
        points=3,
        minutes=11,
        check=_check,
        reference=room_for_token,
    )
]
