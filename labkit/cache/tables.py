"""Block tables: which blocks hold which row's tokens. Numbers only; the memory lives elsewhere.

A row's token at position p lies in block `blocks[p // block_size]` at offset `p % block_size`. Rows grow a
block at a time, share blocks with rows that begin alike, and copy a shared block before they write into it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from labkit.cache.pool import OutOfBlocks
from labkit.cache.prefix import Name, PrefixCache
from labkit.errors import LabkitError


@dataclass
class Row:
    """One row's blocks.

    `length` tokens are stored for good. `names` are those of its published blocks, after the root's: one more
    than there are published blocks.
    """

    blocks: list[int]
    length: int
    names: list[Name]

    @property
    def published(self) -> int:
        """Full blocks at the beginning that others can find, here or in an equal block of theirs."""
        return len(self.names) - 1


class BlockTables:
    """The rows of one pool.

    Args:
        blocks: size of the pool.
        block_size: tokens in a block.
        share: whether rows find blocks that others published.
        prefix: who finds and publishes them; a PrefixCache of its own by default.

    Raises:
        LabkitError: sizes below one.
    """

    def __init__(
        self, blocks: int, block_size: int = 16, *, share: bool = True, prefix: PrefixCache | None = None
    ) -> None:
        if block_size < 1:
            raise LabkitError(f"A block of {block_size} tokens holds nothing.", "Give at least one token.")
        self.block_size = block_size
        self.share = share
        self.prefix = PrefixCache(blocks, block_size) if prefix is None else prefix
        self.pool = self.prefix.pool
        self.rows: dict[int, Row] = {}
        self._copies: dict[int, int] = {}

    def open(self, row: int, tokens: Sequence[int], salt: str = "") -> int:
        """Begin a row with the longest published beginning of its tokens.

        Returns:
            How many tokens need not be computed.
        """
        if row in self.rows:
            raise LabkitError(f"Row {row} is open already.", "Release it, or use another number.")
        found = self.prefix.hold(tokens, salt) if self.share else []
        self.rows[row] = Row(
            blocks=[entry.block for entry in found],
            length=len(found) * self.block_size,
            names=[self.prefix.root(salt), *(entry.name for entry in found)],
        )
        return self.rows[row].length

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold `tokens` tokens."""
        return -(-tokens // self.block_size)

    def admissible(self, tokens: Sequence[int], salt: str = "", spare: int = 0) -> bool:
        """Whether a row of these tokens could be opened and reserved now, `spare` blocks left over."""
        found = self.prefix.lookup(tokens, salt, record=False) if self.share else []
        # what a host store would bring takes a fresh block too, as if it were computed
        fresh = self.blocks_for(len(tokens)) - len(found)
        # a cached block that the row will hold is no longer there to be given out
        revived = sum(self.pool.references(entry.block) == 0 for entry in found)
        return fresh + revived + spare <= self.pool.available

    def missing(self, row: int, length: int) -> int:
        """Blocks that `reserve(row, length)` would take from the pool."""
        grow = max(0, self.blocks_for(length) - len(self.rows[row].blocks))
        return grow + len(self._to_copy(row, length))

    def reserve(self, row: int, length: int) -> None:
        """Make room for tokens up to `length`, none of it shared where it will be written.

        Raises:
            OutOfBlocks: too few are available; nothing changed.
        """
        mine = self.rows[row]
        shared = self._to_copy(row, length)
        grow = max(0, self.blocks_for(length) - len(mine.blocks))
        fresh = self.pool.allocate(grow + len(shared))
        for index, target in zip(shared, fresh, strict=False):
            source = mine.blocks[index]
            self._copies[target] = self._copies.get(source, source)
            mine.blocks[index] = target
            self.pool.release([source])
        mine.blocks += fresh[len(shared) :]

    def _to_copy(self, row: int, length: int) -> list[int]:
        """Indices of blocks that will be written up to `length` and that others hold or may find."""
        mine = self.rows[row]
        first = mine.length // self.block_size
        last = min(self.blocks_for(length), len(mine.blocks))
        return [
            index
            for index in range(first, last)
            if self.pool.references(mine.blocks[index]) > 1 or self.pool.kept(mine.blocks[index])
        ]

    def take_copies(self) -> tuple[list[int], list[int]]:
        """Blocks to copy before the next write, as (from, to); each is handed out once.

        All sources are to be read before any target is written.
        """
        copies, self._copies = self._copies, {}
        return list(copies.values()), list(copies)

    def commit(self, row: int, length: int, tokens: Sequence[int], *, publish: bool = True) -> None:
        """The first `length` of `tokens` are stored and accepted: publish the blocks that they fill.

        Args:
            publish: let others find those blocks; without it a later commit of the row does.
        """
        mine = self.rows[row]
        mine.length = length
        if not (self.share and publish):
            return
        size = self.block_size
        while (mine.published + 1) * size <= length:
            start = mine.published * size
            block = mine.blocks[mine.published]
            mine.names.append(self.prefix.publish(mine.names[-1], tokens[start : start + size], block))

    def fork(self, row: int, child: int, length: int | None = None) -> None:
        """Begin `child` with the first `length` tokens that `row` has stored, all by default.

        Both may grow; whoever writes into a shared block copies it first.
        """
        if child in self.rows:
            raise LabkitError(f"Row {child} is open already.", "Release it, or use another number.")
        mine = self.rows[row]
        length = mine.length if length is None else min(length, mine.length)
        blocks = mine.blocks[: self.blocks_for(length)]
        self.pool.share(blocks)
        self.rows[child] = Row(blocks, length, mine.names[: length // self.block_size + 1])

    def truncate(self, row: int, length: int) -> None:
        """Keep only what holds the first `length` tokens: rejected guesses, or room reserved and not used.

        Raises:
            LabkitError: fewer tokens than others may already have found.
        """
        mine = self.rows[row]
        if length < mine.published * self.block_size:
            raise LabkitError(
                f"Row {row} cannot go back to {length} tokens: {mine.published} blocks of it are published.",
                "Only tokens behind the last published block can be taken back.",
            )
        kept = self.blocks_for(length)
        self.pool.release(mine.blocks[kept:])
        del mine.blocks[kept:]
        mine.length = min(mine.length, length)

    def release(self, row: int) -> None:
        """Close a row and return its blocks."""
        self.pool.release(self.rows.pop(row).blocks)

    def slots(self, row: int, start: int, stop: int) -> list[int]:
        """Where positions start … stop - 1 of a row lie: block · block_size + offset."""
        blocks, size = self.rows[row].blocks, self.block_size
        return [blocks[p // size] * size + p % size for p in range(start, stop)]

    @property
    def stored_tokens(self) -> int:
        """Tokens in all open rows; a shared one counts for each row that sees it."""
        return sum(row.length for row in self.rows.values())

    @property
    def waste(self) -> float:
        """Internal fragmentation: the share of the used blocks' room that holds no token."""
        filled: dict[int, int] = {}
        for row in self.rows.values():
            for index, block in enumerate(row.blocks):
                inside = min(self.block_size, max(0, row.length - index * self.block_size))
                filled[block] = max(filled.get(block, 0), inside)
        room = len(filled) * self.block_size
        return 1 - sum(filled.values()) / room if room else 0.0


__all__ = ["BlockTables", "OutOfBlocks", "Row"]
