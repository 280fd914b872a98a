"""Blocks that the device has no room for, kept compressed on the host: the second level of a prefix cache."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from labkit.cache.lossless import DEFAULT, Codec, Packed, compress_block, restore
from labkit.errors import LabkitError


@dataclass(frozen=True)
class HostStats:
    """A store's content and its history.

    Args:
        entries: keys in the store.
        raw_bytes: of their tensors.
        stored_bytes: that they take.
        hits, misses: calls of `get` that found, and did not find, their key.
        evictions: entries that had to make room.
    """

    entries: int
    raw_bytes: int
    stored_bytes: int
    hits: int
    misses: int
    evictions: int

    @property
    def ratio(self) -> float:
        """Raw ÷ stored bytes; 1 when nothing is stored."""
        return self.raw_bytes / self.stored_bytes if self.stored_bytes else 1.0


class HostStore:
    """Lists of tensors by key, compressed, within a budget; the least recently used go first.

    A key must say everything that the tensors depend on. For a prefix cache that is the model and all tokens
    up to the block's end, not a hash of them: two prefixes with one hash would read each other's past.

    Args:
        budget: stored bytes at most.
        codec: how planes are coded.

    Raises:
        LabkitError: a budget below zero.
    """

    def __init__(self, budget: int, codec: Codec = DEFAULT) -> None:
        if budget < 0:
            raise LabkitError(f"A store cannot hold {budget} bytes.", "Give a budget of zero or more bytes.")
        self.budget = budget
        self.codec = codec
        self._entries: OrderedDict[Hashable, list[Packed]] = OrderedDict()  # least recently used first
        self._raw = self._stored = 0
        self._hits = self._misses = self._evictions = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Hashable) -> bool:
        """Whether the key is there. Unlike `get`, this is not a use of it and not counted."""
        return key in self._entries

    def put(self, key: Hashable, tensors: Sequence[Tensor]) -> bool:
        """Keep the tensors, in place of what the key had. False when they alone exceed the budget.

        Raises:
            LabkitError: a dtype that cannot be compressed; the store is as before.
        """
        packed = [compress_block(tensor, self.codec) for tensor in tensors]
        self.discard(key)
        size = sum(each.stored_bytes for each in packed)
        if size > self.budget:
            return False
        while self._stored + size > self.budget:
            self.discard(next(iter(self._entries)))
            self._evictions += 1
        self._entries[key] = packed
        self._stored += size
        self._raw += sum(each.raw_bytes for each in packed)
        return True

    def get(self, key: Hashable, device: torch.device | str = "cpu") -> list[Tensor] | None:
        """The tensors again, or None; the entry becomes the most recently used.

        Raises:
            LabkitError: they are damaged. The entry is gone then, so that the next `get` is a miss.
        """
        packed = self._entries.get(key)
        if packed is None:
            self._misses += 1
            return None
        try:
            tensors = [restore(each, device) for each in packed]
        except LabkitError:
            self.discard(key)
            raise
        self._entries.move_to_end(key)
        self._hits += 1
        return tensors

    def touch(self, key: Hashable) -> bool:
        """Make a key the most recently used, without unpacking it; False when it is not there."""
        if key in self._entries:
            self._entries.move_to_end(key)
        return key in self._entries

    def discard(self, key: Hashable) -> None:
        """Forget a key, if it is there."""
        for each in self._entries.pop(key, ()):
            self._stored -= each.stored_bytes
            self._raw -= each.raw_bytes

    def clear(self) -> None:
        """Forget all keys; counts of hits, misses and evictions go on."""
        self._entries.clear()
        self._raw = self._stored = 0

    @property
    def stats(self) -> HostStats:
        """What is stored now, and what was asked of the store so far."""
        return HostStats(len(self), self._raw, self._stored, self._hits, self._misses, self._evictions)
