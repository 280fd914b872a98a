"""How the rows of one step lie in one forward pass: packed along the token axis, with no padding between.

    decode rows, one token each │ chunks, any number of tokens each
    a │ b │ c │ d d d d d │ e e e

Linear layers see one long row of tokens and need not know. Attention does: a token may look at its own row
only. Row r brings `queries[r]` tokens, of which the last sees `lengths[r]` tokens, itself included. So the
i-th of q queries stands at position n - q + i of a row with n visible tokens, and sees key j if
j <= position, and under a sliding window only if position - j < window.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from labkit.errors import LabkitError


@dataclass(frozen=True, eq=False)
class Layout:
    """One packed step. The host knows all sizes; what a kernel reads lies on the device.

    Args:
        decodes: rows of exactly one token, which come first.
        queries: tokens of each row in this pack; their sum is the length of the pack.
        lengths: tokens of each row that its last query sees, itself included.
        slots: int64 [tokens], where each token's key and value go in the paged store; None without a store.
        table: int32 [rows, most blocks of a row], the blocks of each row in order. Padding is any valid id.
        visible: int32 [rows], `lengths` on the device.
        starts: int32 [chunks + 1], where each row after the decode rows begins, counted from the first of
            their tokens, and where the last ends. Whoever has it on the device already gives it.

    Raises:
        LabkitError: the sizes do not describe a pack.
    """

    decodes: int
    queries: tuple[int, ...]
    lengths: tuple[int, ...]
    slots: Tensor | None = None
    table: Tensor | None = None
    visible: Tensor | None = None
    starts: Tensor | None = None

    def __post_init__(self) -> None:
        rows = len(self.queries)
        if len(self.lengths) != rows or not 0 <= self.decodes <= rows:
            raise LabkitError(
                f"A layout of {rows} rows has {len(self.lengths)} lengths and {self.decodes} decode rows.",
                "Give one length a row, and no more decode rows than rows.",
            )
        if any(count != 1 for count in self.queries[: self.decodes]):
            raise LabkitError("A decode row brings more or less than one token.", "Pack it as a chunk.")
        if any(not 0 < count <= n for count, n in zip(self.queries, self.lengths, strict=True)):
            raise LabkitError(
                "A row of a layout brings no token, or more tokens than are visible to the last of them.",
                "Lengths count the tokens of this step too.",
            )
        if (self.slots is None) != (self.table is None) or (self.slots is None) != (self.visible is None):
            raise LabkitError(
                "A layout has only some of slots, table and visible.",
                "Give all three, or none where nothing is stored.",
            )

    @property
    def tokens(self) -> int:
        """Tokens in the pack."""
        return sum(self.queries)

    @property
    def stored(self) -> bool:
        """Whether keys and values live in a paged store."""
        return self.table is not None

    @cached_property
    def chunk_starts(self) -> Tensor:
        """`starts`, sent to the device at the first call where it was not given."""
        if self.starts is not None:
            return self.starts
        edges = torch.tensor((0, *self.queries[self.decodes :]), dtype=torch.int32)
        edges = edges.cumsum(0, dtype=torch.int32)
        return edges if self.table is None else edges.to(self.table.device, non_blocking=True)

    def chunks(self) -> Iterator[tuple[int, int, int, int]]:
        """(row, first token in the pack, tokens, visible length) of every row after the decode rows."""
        start = self.decodes
        for row in range(self.decodes, len(self.queries)):
            yield row, start, self.queries[row], self.lengths[row]
            start += self.queries[row]
