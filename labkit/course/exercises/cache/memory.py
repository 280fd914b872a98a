"""Exercise: the memory formula of the KV cache."""

import random
from collections.abc import Callable
from math import prod

from labkit.course.exercise import Exercise
from labkit.course.exercises.profile.values import judge

NAMES = ("layers", "kv_heads", "head_dim", "tokens", "batch", "bytes_per_value")


def kv_bytes(layers: int, kv_heads: int, head_dim: int, tokens: int, batch: int, bytes_per_value: int) -> int:
    """Bytes of keys and values (labkit's own answer)."""
    return 2 * layers * kv_heads * head_dim * tokens * batch * bytes_per_value


def _check(fn: Callable, rng: random.Random) -> None:
    for width in (4, 1, 4):
        # different primes, so that no forgotten factor looks like another
        layers, kv_heads, head_dim, tokens, batch = rng.sample([3, 5, 7, 11, 13, 17, 19, 23], 5)
        sizes = (layers, kv_heads, head_dim, tokens, batch, width)
        given = dict(zip(NAMES, sizes, strict=True))
        want = 2 * prod(sizes)
        typical = {
            "only_keys": want / 2,
            "no_layers": want / layers,
            "no_heads": want / kv_heads,
            "no_head_dim": want / head_dim,
            "no_tokens": want / tokens,
            "no_batch": want / batch,
            "values": want / width,
            "bits": want * 8,
            "gigabytes": want / 1e9,
        }
        judge(fn(*sizes), want, "bytes", typical, **given)


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
