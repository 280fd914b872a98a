"""The memory that captured steps read their input from: fixed places on the device, filled anew for every step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from labkit.cache.numbers import Numbers
from labkit.cache.pack import Pack, View
from labkit.fuse.buckets import Bucket
from labkit.kernels.layout import Layout
from labkit.kernels.pages import Pages

RESERVED = 0
"""The slot, in the reserved block, where padding tokens write their key and value. No row ever holds that block."""


class GraphInputs:
    """One step's numbers on the device, at addresses that stay.

    All but the block table cross in one copy, from two pinned host buffers that take turns: the next step may be
    written while the last one's copy is under way.

    Args:
        tokens, rows: the most of a step.
        width: the most blocks of a row.
        newest: int64 [slots], each row's newest token on the device (see `Numbers.owners`).
        layers: the model's keys and values.
    """

    def __init__(self, tokens: int, rows: int, width: int, newest: Tensor, layers: Sequence[Pages]) -> None:
        self._layers, self._newest = layers, newest
        pinned = newest.device.type == "cuda"
        wide = dict.fromkeys(("ids", "positions", "slots", "owners"), tokens) | {"wanted": rows}
        self._sizes = wide | {"visible": rows, "starts": rows + 1}
        self._words = sum(wide.values())  # of 8 bytes; what follows has 4
        words = self._words + rows + 1
        with torch.inference_mode(False):
            self._there = torch.zeros(words, dtype=torch.int64, device=newest.device)
            self._table = torch.zeros(rows, width, dtype=torch.int32, device=newest.device)
            self._hosts = [torch.zeros(words, dtype=torch.int64, pin_memory=pinned) for _ in range(2)]
            self._tables = [torch.zeros(rows * width, dtype=torch.int32, pin_memory=pinned) for _ in range(2)]
        self._fields = [
            {name: each.numpy() for name, each in self._cut(host).items()} for host in self._hosts
        ]
        self._copied = [torch.cuda.Event() for _ in range(2)] if pinned else []
        self._turn = 0

    def fill(self, bucket: Bucket, step: Numbers | None) -> None:
        """Put a step in place, padded to its bucket; None: nothing but padding. The host does not wait."""
        self._turn = 1 - self._turn
        fields = self._fields[self._turn]
        if self._copied:
            self._copied[self._turn].synchronize()  # of two steps ago: as good as always over
        for name, values in padded(bucket, step).items():
            fields[name][: len(values)] = values
        self._there.copy_(self._hosts[self._turn], non_blocking=True)
        if step is not None:
            rows, blocks = step.table.shape
            table = self._tables[self._turn][: rows * blocks].view(rows, blocks)
            table.numpy()[:] = step.table
            self._table[:rows, :blocks].copy_(table, non_blocking=True)
        if self._copied:
            self._copied[self._turn].record()

    def pack(self, bucket: Bucket) -> Pack:
        """The step in this memory as the model takes it, for capturing: shapes are the bucket's."""
        there, tokens, rows = self._cut(self._there), bucket.tokens, bucket.rows
        ids, positions, slots, owners = (each[:tokens] for each in list(there.values())[:4])
        newest = self._newest.index_select(0, owners.clamp(min=0))
        queries = (1,) * (rows - 1) + (tokens - rows + 1,)  # any cut will do: the device's decides
        layout = Layout(
            0 if bucket.mixed else rows,
            queries,
            queries,
            slots,
            self._table[:rows],
            there["visible"][:rows],
            there["starts"][: rows + 1] if bucket.mixed else None,
        )
        known = torch.where(owners < 0, ids, newest)
        return Pack(known[None], positions[None], there["wanted"][:rows], View(layout, self._layers))

    def _cut(self, words: Tensor) -> dict[str, Tensor]:
        """A buffer as its fields: int64, then int32."""
        sizes = list(self._sizes.items())
        wide = words[: self._words].split([size for _, size in sizes[:5]])
        narrow = words[self._words :].view(torch.int32)[: sizes[5][1] + sizes[6][1]]
        return dict(zip(self._sizes, (*wide, *narrow.split([size for _, size in sizes[5:]])), strict=True))


def padded(bucket: Bucket, step: Numbers | None) -> dict[str, Sequence[int]]:
    """The step's numbers filled up to the bucket's sizes.

    Padding tokens have id 0 at position 0 and write to the reserved block. Padding rows of a decode bucket see one
    token; those of a mixed one bring no token, and no row owns the padding tokens.
    """
    if step is None:
        step = Numbers((), (), (), (), (), (), (), np.zeros((0, 0), dtype=np.int32))
    tokens, rows = bucket.tokens - step.tokens, bucket.rows - step.rows
    starts = step.starts()
    return {
        "ids": [*step.ids, *[0] * tokens],
        "positions": [*step.positions, *[0] * tokens],
        "slots": [*step.slots, *[RESERVED] * tokens],
        "owners": [*step.owners, *[-1] * tokens],
        "wanted": [*step.wanted, *[0] * (bucket.rows - len(step.wanted))],
        "visible": [*step.lengths, *[0 if bucket.mixed else 1] * rows],
        "starts": [*starts, *starts[-1:] * rows],
    }
