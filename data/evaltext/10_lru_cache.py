"""A least-recently-used cache whose entries also grow stale.

Two limits are kept: at most `capacity` entries, and none older than `lifetime`
seconds.  The clock is a parameter, which is what makes the thing testable.
"""

from __future__ import annotations

import functools
import time
from collections import OrderedDict
from typing import Callable, Generic, Hashable, NamedTuple, ParamSpec, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
D = TypeVar("D")
P = ParamSpec("P")
R = TypeVar("R")


class CacheStats(NamedTuple):
    hits: int
    misses: int
    evictions: int


class LRUCache(Generic[K, V]):
    def __init__(
        self,
        capacity: int,
        lifetime: float = float("inf"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if capacity <= 0:
            raise ValueError("an LRU cache must hold at least one entry")
        self.capacity = capacity
        self.lifetime = lifetime
        self._clock = clock
        self._entries: OrderedDict[K, tuple[float, V]] = OrderedDict()
        self._hits = self._misses = self._evictions = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        """Membership does not count as a use and leaves the order alone."""
        return key in self._entries and not self._stale(key)

    def _stale(self, key: K) -> bool:
        stored_at, _ = self._entries[key]
        return self._clock() - stored_at > self.lifetime

    def get(self, key: K, default: D | None = None) -> V | D | None:
        if key in self._entries and self._stale(key):
            del self._entries[key]
        if key not in self._entries:
            self._misses += 1
            return default
        self._hits += 1
        self._entries.move_to_end(key)
        return self._entries[key][1]

    def put(self, key: K, value: V) -> None:
        self._entries[key] = (self._clock(), value)
        self._entries.move_to_end(key)
        while len(self._entries) > self.capacity:
            self._entries.popitem(last=False)
            self._evictions += 1

    def stats(self) -> CacheStats:
        return CacheStats(self._hits, self._misses, self._evictions)


_ABSENT = object()


def remember(capacity: int = 128) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorator form; the cache itself is reachable as ``function.cache``."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        cache: LRUCache[tuple, R] = LRUCache(capacity)

        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            key = (args, tuple(sorted(kwargs.items())))
            found = cache.get(key, _ABSENT)
            if found is _ABSENT:
                found = function(*args, **kwargs)
                cache.put(key, found)
            return found

        wrapper.cache = cache  # type: ignore[attr-defined]
        return wrapper

    return decorate


@remember(capacity=64)
def paths_through_grid(width: int, height: int) -> int:
    if width == 0 or height == 0:
        return 1
    return paths_through_grid(width - 1, height) + paths_through_grid(width, height - 1)


def demo() -> tuple[object, ...]:
    now = [0.0]
    cache: LRUCache[str, int] = LRUCache(2, lifetime=10, clock=lambda: now[0])
    cache.put("soup", 1)
    cache.put("stew", 2)
    cache.get("soup")
    cache.put("salad", 3)  # pushes out the stew, which nobody asked for
    order = sorted(name for name in ("soup", "stew", "salad") if name in cache)
    now[0] = 10.5
    too_old = cache.get("salad", "gone")
    return order, too_old, cache.stats(), paths_through_grid(8, 8)
