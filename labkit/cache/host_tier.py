"""A prefix cache with a second level: what the device has no room for waits, compressed, on the host.

A published block that the pool gives out again is copied to the host first; a prompt whose beginning goes on
there gets it back into blocks of its own, published again. Nothing is recomputed and no bit changes.

A block keeps its *name* while it is away: the prefix cache finds a block by the name of the one before and by
its own tokens, and a name stands for one salt and one text for ever, so what is found below is as certain as
what is found above, and blocks behind it can be reached again.

**When it pays.** Coming back takes bytes ÷ (unpacking and transfer), computing again takes
2 · weights · tokens ÷ FLOP/s, and the attention over all tokens before. One core unpacks about 200 MB/s and packs 50.
A small model on a CPU gains several times: 4 KiB a token unpack far faster than they are computed. A 7B on a GPU
loses by far: its 512 KiB a token take milliseconds to unpack, and microseconds to compute. There the store
buys nothing, unless a text is so long that attention's square outweighs the rest.

And it costs where nothing ever comes back: the first eviction of a block waits for the step in flight, and
packs, in the middle of an allocation. Engines for GPUs copy as it is, on a stream of their own, a layer ahead
of the computation (Mooncake, Qin et al. 2024).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from labkit.cache.host_store import HostStore
from labkit.cache.prefix import Entry, Key, Name, PrefixCache


class HostTier(PrefixCache):
    """A prefix cache above a host store.

    Args:
        blocks, block_size: as PrefixCache takes them.
        store: where blocks go. Several caches may use one; they share its budget and no block.
        settle: carries out the copies that rows wait for; a block may be the source or the target of one.
        read, write: take content from a block and put it there, in order with the steps launched before.
        device: where `write` wants it.
    """

    def __init__(
        self,
        blocks: int,
        block_size: int,
        store: HostStore,
        settle: Callable[[], None],
        read: Callable[[int], Sequence[Tensor]],
        write: Callable[[int, Sequence[Tensor]], None],
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(blocks, block_size)
        self._store, self._device = store, device
        self._settle, self._read, self._write = settle, read, write
        self._mine = object()  # part of every key: names mean nothing to another cache
        self._below: dict[Key, int] = {}  # names of blocks on the host, and of some that it has dropped

    def hold(self, tokens: Sequence[int], salt: str = "") -> list[Entry]:
        """As the prefix cache does; then go on with what the host has, as long as there are blocks for it."""
        found = super().hold(tokens, salt)
        name: Name = found[-1].name if found else self.root(salt)
        for start in range(len(found) * self.block_size, len(tokens) - self.block_size, self.block_size):
            key = (name, tuple(tokens[start : start + self.block_size]))
            entry = self._entries.get(key)
            if entry is not None:  # on the device, behind one that was not
                self.pool.share([entry.block])
            else:
                entry = self._bring(key)
            if entry is None:
                break
            found.append(entry)
            name = entry.name
            self.statistics.found += self.block_size
        return found

    def close(self) -> None:
        """Forget what is on the host; nobody else could find it."""
        for key in self._below:
            self._store.discard((self._mine, key))
        self._below.clear()

    def _bring(self, key: Key) -> Entry | None:
        """A block from the host, held once; None if it is not there, or damaged, or no block is available."""
        if (self._mine, key) not in self._store or not self.pool.available:
            return None
        name = self._below[key]
        try:
            content = self._store.get((self._mine, key), self._device)
        except Exception:  # damaged, or no memory to unpack it: the row computes it, as without a host
            return None
        if content is None:
            return None
        self._settle()  # the block that it gets may be the source of a copy, or a target that was given up
        (block,) = self.pool.allocate()  # may push other blocks down, and this key's copy out of the store
        self._write(block, content)
        self._below[key] = name
        self.publish(*key, block)
        self.statistics.restored += self.block_size
        return self._entries[key]

    def _name(self, key: Key) -> int:
        return self._below[key] if key in self._below else super()._name(key)

    def _forget(self, block: int) -> None:
        """Copy a block down before it is given out. A block that came from the host is still there."""
        key = self._keys[block]
        name = self._entries[key].name
        super()._forget(block)
        if self._store.touch((self._mine, key)) or self._put(key, block):
            self._below[key] = name
        if len(self._below) > 2 * len(self._store):  # the store drops what it likes: look now and then
            self._below = {key: name for key, name in self._below.items() if (self._mine, key) in self._store}

    def _put(self, key: Key, block: int) -> bool:
        self._settle()  # outside of the `try`: a copy that failed would leave its row with anything
        try:
            return self._store.put((self._mine, key), self._read(block))
        except Exception:  # no memory to pack it: an eviction must not fail half-way, and a copy is a luxury
            return False
