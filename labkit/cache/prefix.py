"""Which blocks already hold the beginning of a text, so that nobody computes it twice.

Only full blocks are shared. A block is found by the tokens it holds *and* by the block before it, so equal
tokens after different beginnings never meet; the tokens themselves are compared, not a hash of them. The
names of earlier blocks are never used again: once one is evicted, those behind it cannot be reached.
(RadixAttention, Zheng et al. 2024, and vLLM's automatic prefix caching share by the same rule.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from labkit.cache.pool import BlockPool

Name = int | str  # a published block's number, never used again; before the first block, the salt
Key = tuple[Name, tuple[int, ...]]  # the name of the block before, and the tokens in this one


@dataclass
class PrefixStatistics:
    """Tokens looked up and found since the start, and cached blocks that had to make room.

    `restored` of the tokens found came back from the host; the others were on the device.
    """

    looked_up: int = 0
    found: int = 0
    restored: int = 0
    evicted: int = 0

    @property
    def hit_rate(self) -> float:
        """Share of looked-up tokens that were found; 0 before the first look-up."""
        return self.found / self.looked_up if self.looked_up else 0.0


@dataclass(frozen=True)
class Entry:
    """A published block and its name in the chain."""

    block: int
    name: int


class PrefixCache:
    """Finds and publishes full blocks of one pool.

    Args:
        blocks: how many blocks the pool has.
        block_size: tokens in a block.
    """

    def __init__(self, blocks: int, block_size: int) -> None:
        self.pool = BlockPool(blocks, evicted=self._forget)
        self.block_size = block_size
        self.statistics = PrefixStatistics()
        self._entries: dict[Key, Entry] = {}
        self._keys: dict[int, Key] = {}
        self._names = count(1)

    def __len__(self) -> int:
        """Published blocks."""
        return len(self._entries)

    def root(self, salt: str = "") -> Name:
        """The name before the first block. Texts with different salts share nothing."""
        return salt

    def lookup(self, tokens: Sequence[int], salt: str = "", *, record: bool = True) -> list[Entry]:
        """The longest published beginning of `tokens` in full blocks, the last token never included.

        A row whose every token were found would have nothing left to compute, and no logits to sample from.
        """
        found: list[Entry] = []
        name: Name = self.root(salt)
        for start in range(0, len(tokens) - self.block_size, self.block_size):
            entry = self._entries.get((name, tuple(tokens[start : start + self.block_size])))
            if entry is None:
                break
            found.append(entry)
            name = entry.name
        if record:
            self.statistics.looked_up += len(tokens)
            self.statistics.found += len(found) * self.block_size
        return found

    def hold(self, tokens: Sequence[int], salt: str = "") -> list[Entry]:
        """`lookup`, with each block held once; the caller releases them."""
        found = self.lookup(tokens, salt)
        self.pool.share(entry.block for entry in found)
        return found

    def publish(self, parent: Name, tokens: Sequence[int], block: int) -> int:
        """Let others find a full block that holds `tokens` after the block named `parent`.

        If an equal one is published already, that one stays and this block remains private.

        Returns:
            The name under which the next block of this text is published.
        """
        key = (parent, tuple(tokens))
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = Entry(block, self._name(key))
            self._keys[block] = key
            self.pool.keep(block)
        return entry.name

    def close(self) -> None:
        """Give back what is kept elsewhere; here nothing is."""

    def _name(self, key: Key) -> int:
        return next(self._names)

    def _forget(self, block: int) -> None:
        self._entries.pop(self._keys.pop(block))
        self.statistics.evicted += 1
