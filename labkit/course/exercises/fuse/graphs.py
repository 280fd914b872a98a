"""Exercise: a decode step as the fixed-size input of a CUDA graph, and the key of that graph."""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from labkit.course.exercise import Exercise, expect

FIELDS = ("ids", "slots", "visible", "tables")
Step = tuple[Any, dict[str, list]]


def graph_step(
    ids: Sequence[int],
    slots: Sequence[int],
    visible: Sequence[int],
    tables: Sequence[Sequence[int]],
    numbers: Mapping[str, int],
    buckets: Sequence[int],
    width: int,
) -> Step | None:
    """Key and padded input of a step (labkit's own answer)."""
    fitting = [bucket for bucket in buckets if bucket >= len(ids)]
    if not fitting:
        return None
    bucket = min(fitting)
    idle = bucket - len(ids)
    return (bucket, *sorted(numbers.items())), {
        "ids": [*ids, *[0] * idle],
        "slots": [*slots, *[0] * idle],
        "visible": [*visible, *[1] * idle],
        "tables": [[*table, *[0] * (width - len(table))] for table in [*tables, *[[]] * idle]],
    }


def _check(fn: Callable, rng: random.Random) -> None:
    buckets = [rng.choice([8, 9]), 2, rng.choice([4, 5])]  # in no order
    numbers = {"splits": rng.randint(1, 8), "window": rng.choice([0, 128, 256])}
    numbers[rng.choice(["shares", "chunks", "lanes"])] = rng.randint(20, 30)
    whole = sorted(buckets)
    step = _draw(rng, whole[1] + 1, numbers, buckets)
    key = _judge(fn, step)
    again = _draw(rng, whole[2], numbers, buckets)
    _same(_judge(fn, again), key, "key_moves", step, again)
    turned = {**again, "numbers": dict(reversed(numbers.items()))}
    _same(_judge(fn, turned), key, "key_moves", step, turned)
    for rows in (whole[0], whole[1] - 1, 1):
        other = _draw(rng, rows, numbers, buckets)
        if _bucket(other) != _bucket(step):
            _differs(_judge(fn, other), key, "key_without_bucket", step, other)
        else:
            _judge(fn, other)
    for name in numbers:
        changed = {**step, "numbers": {**numbers, name: numbers[name] + 1}}
        _differs(_judge(fn, changed), key, "key_without_number", step, changed, number=name)
    renamed = {**step, "numbers": {f"{name}_2": value for name, value in numbers.items()}}
    _differs(_judge(fn, renamed), key, "key_without_number", step, renamed, number="every name")
    crossed = {**step, "numbers": {**numbers, "splits": numbers["window"], "window": numbers["splits"]}}
    if crossed["numbers"] != numbers:
        _differs(
            _judge(fn, crossed), key, "key_without_number", step, crossed, number="which number is which"
        )
    large = _draw(rng, whole[2] + 1, numbers, buckets)
    got = fn(**large)
    expect(got is None, "too_large", rows=whole[2] + 1, largest=whole[2], got=got)


def _draw(rng: random.Random, rows: int, numbers: dict[str, int], buckets: list[int]) -> dict[str, Any]:
    """A decode step: each row's newest token, where its key goes, how far it may look, and its blocks of 4."""
    width, free = 5, rng.sample(range(1, 99), 5 * rows)
    most = 4 * width if rows > 1 else 4 * width - 4  # a row alone never fills its table: the width must show
    visible = [rng.randint(2, most) for _ in range(rows)]
    tables = [[free.pop() for _ in range(-(-length // 4))] for length in visible]
    slots = [4 * table[(n - 1) // 4] + (n - 1) % 4 for table, n in zip(tables, visible, strict=True)]
    ids = [rng.randrange(1, 1000) for _ in range(rows)]
    return {
        "ids": ids,
        "slots": slots,
        "visible": visible,
        "tables": tables,
        "numbers": numbers,
        "buckets": buckets,
        "width": width,
    }


def _bucket(step: dict[str, Any]) -> int:
    return min(bucket for bucket in step["buckets"] if bucket >= len(step["ids"]))


def _judge(fn: Callable, step: dict[str, Any]) -> Any:
    """Check one step's input; its key, as a value that can be compared."""
    rows, bucket, width = len(step["ids"]), _bucket(step), step["width"]
    given = {"rows": rows, "bucket": bucket, "buckets": step["buckets"], "width": width}
    got = fn(**step)
    expect(got is not None, "refused", **given)
    pair = isinstance(got, list | tuple) and len(got) == 2 and isinstance(got[1], Mapping)
    expect(pair and set(got[1]) == set(FIELDS), "form", got=got, **given)
    key, inputs = got
    for name in FIELDS:
        given["name"] = name
        field = inputs[name]
        field = field.tolist() if hasattr(field, "tolist") else field
        expect(isinstance(field, list | tuple), "form", got=got, **given)
        expect(len(field) != rows or rows == bucket, "not_padded", got=len(field), **given)
        larger = len(field) in step["buckets"] and len(field) > bucket
        expect(not larger, "larger_bucket", got=len(field), **given)
        expect(len(field) == bucket, "size", got=len(field), **given)
        if name == "tables":
            _judge_tables(field, step, given)
            continue
        expect(
            list(field[:rows]) == step[name], "rows_changed", got=list(field[:rows]), want=step[name], **given
        )
        idle = list(field[rows:])
        if name == "visible":
            expect(0 not in idle, "length_0", got=idle, **given)
            expect(all(length == 1 for length in idle), "length", got=idle, **given)
        elif name == "slots":
            expect(not set(idle) & set(step["slots"]), "writes_into_row", got=idle, **given)
            expect(all(type(slot) is int and slot >= 0 for slot in idle), "negative", got=idle, **given)
            expect(all(slot < 4 for slot in idle), "slot", got=idle, **given)
        else:
            expect(all(type(i) is int and 0 <= i < 1000 for i in idle), "negative", got=idle, **given)
    expect(_hashable(key), "key_form", got=key, **given)
    return key


def _judge_tables(field: Sequence[Any], step: dict[str, Any], given: dict[str, Any]) -> None:
    rows, width = given["rows"], given["width"]
    tables = [table.tolist() if hasattr(table, "tolist") else table for table in field]
    sizes = [len(table) if isinstance(table, list | tuple) else None for table in tables]
    expect(all(size == width for size in sizes), "table_width", got=sizes, **given)
    for number, (table, own) in enumerate(zip(tables, step["tables"], strict=False)):
        kept = list(table[: len(own)]) == own
        expect(kept, "rows_changed", got=list(table), want=own, **given)
        rest = list(table[len(own) :])
        expect(all(type(block) is int and block >= 0 for block in rest), "negative", got=rest, **given)
        expect(not any(rest), "table_rest", got=list(table), row=number, **given)
    idle = [list(table) for table in tables[rows:]]
    flat = [block for table in idle for block in table]
    expect(all(type(block) is int and block >= 0 for block in flat), "negative", got=flat, **given)
    expect(not any(flat), "block_of_row", got=idle, **given)


def _hashable(key: Any) -> bool:
    """Whether it can name a graph in a dict."""
    try:
        hash(key)
    except TypeError:
        return False
    return True


def _same(key: Any, first: Any, failure: str, *steps: dict[str, Any]) -> None:
    rows = [len(step["ids"]) for step in steps]
    expect(key == first, failure, got=key, want=first, rows=rows, numbers=steps[0]["numbers"])


def _differs(key: Any, first: Any, failure: str, *steps: dict[str, Any], number: str = "") -> None:
    buckets, numbers = [_bucket(step) for step in steps], [step["numbers"] for step in steps]
    expect(key != first, failure, got=key, buckets=buckets, numbers=numbers, number=number)


EXERCISES = [
    Exercise(
        name="graph_step",
        notebook="05_fuse",
        level="extra",
        points=2,
        minutes=10,
        check=_check,
        reference=graph_step,
        keeps_arguments=True,
    )
]
