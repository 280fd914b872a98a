"""Exercise: the memory formula of the KV cache."""

import operator
import random
from collections.abc import Callable
from math import prod
from typing import Any

from labkit.course.exercise import Exercise, expect
from labkit.course.exercises.profile.values import judge

NAMES = ("layers", "heads", "kv_heads", "head_dim", "tokens", "batch", "bytes_per_value")


def kv_bytes(
    layers: int, heads: int, kv_heads: int, head_dim: int, tokens: int, batch: int, bytes_per_value: int
) -> int:
    """Bytes of keys and values (labkit's own answer). Query heads keep nothing."""
    return 2 * layers * kv_heads * head_dim * tokens * batch * bytes_per_value


def _check(fn: Callable, rng: random.Random) -> None:
    for width in (8, 1, 4):  # 8 first: with it, two bytes for every value do not look like keys alone
        # different primes, so that no forgotten factor looks like another
        layers, kv_heads, head_dim, tokens, batch = rng.sample([3, 5, 7, 11, 13, 17, 19, 23], 5)
        heads = kv_heads * 29
        sizes = (layers, heads, kv_heads, head_dim, tokens, batch, width)
        given = dict(zip(NAMES, sizes, strict=True))
        want = 2 * prod(sizes) // heads
        typical = {
            "query_heads": want * heads / kv_heads,
            "both_heads": want * heads,
            "only_keys": want / 2,
            "two_bytes": want * 2 / width,
            "no_layers": want / layers,
            "no_heads": want / kv_heads,
            "no_head_dim": want / head_dim,
            "no_tokens": want / tokens,
            "no_batch": want / batch,
            "values": want / width,
            "bits": want * 8,
            "gigabytes": want / 1e9,
        }
        got = fn(*sizes)
        judge(got, want, "bytes", typical, **given)
        expect(_whole(got), "not_whole", kind=type(got).__name__, got=got, want=want, **given)


def _whole(got: Any) -> bool:
    """Whether it is a whole number by its type (a float is not, whatever its value)."""
    try:
        operator.index(got)
    except TypeError:
        return False
    return True


EXERCISES = [
    Exercise(
        name="kv_bytes",
        notebook="04_cache",
        level="core",
        points=1,
        minutes=3,
        check=_check,
        reference=kv_bytes,
    )
]
