"""Exercise: the largest batch that memory holds."""

import math
import random
from collections.abc import Callable

from labkit.course.exercise import Exercise, expect
from labkit.course.exercises.profile.values import judge, number


def largest_batch(
    memory: int, share: float, weights: int, kv_per_token: int, context: int, block_size: int
) -> int:
    """How many rows of full context fit beside the weights (labkit's own answer)."""
    blocks = -(-context // block_size)
    free = memory * share - weights
    return max(0, math.floor(free / (blocks * block_size * kv_per_token)))


def _check_memory(fn: Callable, rng: random.Random) -> None:
    for low, high in ((40, 90), (3, 9)):
        asked = _drawn(rng, rng.randint(low, high))
        while low > 9 and len(set(_mistakes(*asked).values())) < len(_mistakes(*asked)):
            asked = _drawn(rng, rng.randint(low, high))  # the first tells every mistake from every other
        _judge_memory(fn, *asked)
        memory, share, weights, kv, _, block_size = asked
        _judge_memory(fn, memory, share, weights, kv, block_size * 4, block_size)
    row = 64 * 2048
    _judge_memory(fn, 4 * row * 10, 0.75, 2 * row * 10, 2048, 64, 16)  # to the last byte
    _judge_memory(fn, 100 * row, 0.5, 90 * row, 2048, 60, 16)  # not even the weights
    _judge_memory(fn, 100 * row, 0.5, 49 * row + row // 2, 2048, 60, 16)  # half a row


def _drawn(rng: random.Random, rows: int) -> tuple[int, float, int, int, int, int]:
    """Memory for so many rows and half a one more; the last block of a row is nearly empty."""
    block_size = rng.choice([16, 32])
    context = block_size * rng.randint(3, 20) + rng.randint(1, block_size // 3)
    kv = 1024 * rng.randint(8, 600)
    row = -(-context // block_size) * block_size * kv
    share = rng.choice([0.5, 0.75, 0.875])  # powers of two in it, so that the sums are exact
    weights = row * rng.randint(16, 40)
    memory = int((weights + row * rows + row // 2) / share)
    return memory, share, weights, kv, context, block_size


def _mistakes(
    memory: int, share: float, weights: int, kv: int, context: int, block_size: int
) -> dict[str, float]:
    """What usual mistakes would give."""
    row = -(-context // block_size) * block_size * kv
    free = memory * share - weights
    return {
        "no_blocks": math.floor(free / (context * kv)),
        "no_weights": math.floor(memory * share / row),
        "no_share": math.floor((memory - weights) / row),
        "share_of_rest": math.floor((memory - weights) * share / row),
        "blocks_down": math.floor(free / (context // block_size * block_size * kv)),
        "one_token": math.floor(free / kv),
        "rounded_up": max(0, math.floor(free / row)) + 1,
    }


def _judge_memory(
    fn: Callable, memory: int, share: float, weights: int, kv: int, context: int, block_size: int
) -> None:
    got = fn(memory, share, weights, kv, context, block_size)
    row = -(-context // block_size) * block_size * kv
    free = memory * share - weights
    exact = free / row
    want = max(0, math.floor(exact))
    given = {"memory": memory, "share": share, "weights": weights, "kv": kv, "context": context}
    given |= {"block_size": block_size, "row": row, "free": free}
    value = number(got)
    expect(value is not None, "form", got=got, want=want, **given)
    if free < row:
        expect(value is not None and value >= 0, "negative", got=got, want=want, **given)
    value = value or 0.0
    expect(value == math.floor(value) or math.floor(value) != want, "fraction", got=got, want=want, **given)
    judge(got, want, "batch", _mistakes(memory, share, weights, kv, context, block_size), **given)


EXERCISES = [
    Exercise(
        name="largest_batch",
        notebook="03_batch",
        level="core",
        points=2,
        minutes=4,
        check=_check_memory,
        reference=largest_batch,
    )
]
