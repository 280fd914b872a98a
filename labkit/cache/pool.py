"""A pool of equal blocks of KV memory, counted by reference (PagedAttention, Kwon et al. 2023).

A block is *used* while somebody holds it, *cached* when nobody does but its content is worth keeping, and
*free* otherwise. Cached blocks are given out again when the free ones are gone, least recently used first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

from labkit.errors import LabkitError


class OutOfBlocks(LabkitError):
    """More blocks were asked for than are free or cached; nothing was taken."""

    def __init__(self, wanted: int, available: int) -> None:
        super().__init__(
            f"{wanted} more KV blocks are needed and {available} are available.",
            "Release a row, or make the pool larger.",
        )


class BlockPool:
    """Numbers of blocks, without their memory.

    Args:
        blocks: how many can be given out. They are numbered from 1: block 0 is reserved for what must be
            written somewhere and is never read, such as the padding rows of a CUDA graph.
        evicted: called with a cached block that is about to be given out for something else.

    Raises:
        LabkitError: no blocks.
    """

    def __init__(self, blocks: int, evicted: Callable[[int], None] = lambda block: None) -> None:
        if blocks < 1:
            raise LabkitError(f"A pool of {blocks} blocks holds nothing.", "Give at least one block.")
        self.total = blocks
        self._evicted = evicted
        self._free = list(range(blocks, 0, -1))
        self._references = [0] * (blocks + 1)
        self._kept: set[int] = set()
        self._cached: OrderedDict[int, None] = OrderedDict()

    @property
    def free(self) -> int:
        """Blocks whose content nobody needs."""
        return len(self._free)

    @property
    def cached(self) -> int:
        """Blocks that nobody holds and that are kept for their content."""
        return len(self._cached)

    @property
    def used(self) -> int:
        """Blocks that somebody holds."""
        return self.total - self.free - self.cached

    @property
    def available(self) -> int:
        """Blocks that `allocate` could give out now."""
        return self.free + self.cached

    def references(self, block: int) -> int:
        """How many hold a block."""
        return self._references[block]

    def allocate(self, count: int = 1) -> list[int]:
        """Take blocks, each with one reference.

        Raises:
            OutOfBlocks: too few are available; none is taken.
        """
        if count > self.available:
            raise OutOfBlocks(count, self.available)
        blocks = [self._free.pop() if self._free else self._evict() for _ in range(count)]
        for block in blocks:
            self._references[block] = 1
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """Hold blocks that are used or cached once more."""
        for block in blocks:
            if not self._references[block] and block not in self._cached:
                raise LabkitError(f"Block {block} is free and cannot be shared.", "Allocate it first.")
            self._cached.pop(block, None)
            self._references[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Let go of blocks. Those that nobody holds any more become cached if kept, else free.

        Blocks of one row are released from its end, so that eviction takes the end of a prefix before its
        beginning.

        Raises:
            LabkitError: nobody holds a block.
        """
        for block in reversed(list(blocks)):
            if not self._references[block]:
                raise LabkitError(f"Block {block} was released once too often.", "Release each hold once.")
            self._references[block] -= 1
            if self._references[block]:
                continue
            if block in self._kept:
                self._cached[block] = None
            else:
                self._free.append(block)

    def keep(self, block: int) -> None:
        """Remember the content of a used block beyond its last release."""
        self._kept.add(block)

    def kept(self, block: int) -> bool:
        """Whether the content of a block may be looked up by others, so that it must not change."""
        return block in self._kept

    def drop_cached(self) -> int:
        """Forget everything that nobody holds; returns how many blocks that freed."""
        dropped = [self._evict() for _ in range(self.cached)]
        self._free += dropped
        return len(dropped)

    def _evict(self) -> int:
        block, _ = self._cached.popitem(last=False)
        self._kept.discard(block)
        self._evicted(block)
        return block
