"""A packed step as numbers on the host, before any of it is on a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np


@dataclass(frozen=True, eq=False)
class Numbers:
    """What a step runs: rows of one token first, then chunks.

    Args:
        ids, positions, slots: of each token; slots say where its key and value go.
        owners: of each token, the place in a device's list of newest tokens where its id is to be found, because
            the host does not know it yet; -1 where `ids` has it.
        wanted: places in the pack whose logits are wanted.
        queries: tokens of each row in this step.
        lengths: tokens of each row that its last one sees, itself included.
        table: int [rows, most blocks of a row], block ids, padded with the reserved block 0.
    """

    ids: Sequence[int]
    positions: Sequence[int]
    slots: Sequence[int]
    owners: Sequence[int]
    wanted: Sequence[int]
    queries: Sequence[int]
    lengths: Sequence[int]
    table: np.ndarray

    @property
    def tokens(self) -> int:
        """Tokens of all rows."""
        return len(self.ids)

    @property
    def rows(self) -> int:
        """Rows that bring a token or more."""
        return len(self.queries)

    @property
    def decodes(self) -> int:
        """Rows of one token, at the front."""
        return next((row for row, count in enumerate(self.queries) if count != 1), self.rows)

    def starts(self, first: int = 0) -> list[int]:
        """Where each row from `first` on begins, counted from the first token of them, and where the last ends."""
        return [0, *accumulate(self.queries[first:])]


def block_table(blocks: Sequence[Sequence[int]]) -> np.ndarray:
    """Block ids int32 [rows, most blocks], padded with the reserved block."""
    table = np.zeros((len(blocks), max(map(len, blocks))), dtype=np.int32)
    for row, mine in enumerate(blocks):
        table[row, : len(mine)] = mine
    return table
