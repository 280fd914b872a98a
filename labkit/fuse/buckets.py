"""Sizes for which steps are captured: a step runs in the smallest that holds it, its rest filled with padding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from labkit.cache.numbers import Numbers

MOST_TOKENS = 1024
"""Mixed steps of more tokens are not captured: the device works longer on them than the host needs to launch them."""


@dataclass(frozen=True)
class Bucket:
    """The size of a captured step.

    Args:
        tokens: tokens, padding included.
        rows: rows at most; each may ask for the logits of one position.
        mixed: whether rows may bring several tokens. Without, every row brings one, which decode attention wants.
    """

    tokens: int
    rows: int
    mixed: bool


def buckets(rows: int, step_tokens: int, *, mixed: bool) -> list[Bucket]:
    """The sizes for an engine of `rows` rows and `step_tokens` tokens a step, the largest first.

    The largest is captured first because all share one pool of memory, which then never has to grow.

    Args:
        mixed: capture steps with prompt chunks too.
    """
    found = [Bucket(n, n, False) for n in _sizes(min(rows, step_tokens))]
    if mixed:
        most = min(step_tokens, MOST_TOKENS)
        found += [Bucket(n, min(n, rows), True) for n in _sizes(most) if n >= min(16, most)]
    return sorted(found, key=lambda bucket: (bucket.tokens, bucket.mixed), reverse=True)


def bucket_for(step: Numbers, captured: list[Bucket]) -> Bucket | None:
    """The smallest of `captured` that takes the step, or None: then it runs uncaptured."""
    rows = step.rows
    mixed = step.decodes < rows
    if len(step.wanted) > rows:
        return None
    fits = [
        bucket
        for bucket in captured
        if bucket.tokens >= step.tokens and bucket.rows >= rows and bucket.mixed == mixed
    ]
    return min(fits, key=lambda bucket: bucket.tokens, default=None)


def _sizes(most: int) -> Iterator[int]:
    """1, 2, 4, 8, 16, 24, 32, … up to and with `most`: steps of a quarter at most from 32 on."""
    n = 1
    while n < most:
        yield n
        n += n if n < 16 else max(8, 1 << (n.bit_length() - 3))
    yield most
