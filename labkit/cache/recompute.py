"""No cache: every step runs each row's whole text again. What a cache saves is measured against this."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from labkit.cache.pack import Chunk, Pack, View
from labkit.kernels.layout import Layout
from labkit.models import LM


class Recompute:
    """Remembers tokens instead of keys and values.

    Args:
        lm: the model, for its device.
    """

    def __init__(self, lm: LM) -> None:
        self._device = lm.device
        self._texts: dict[int, list[int]] = {}

    def open(self, row: int, tokens: Sequence[int]) -> int:
        """Begin a row; nothing is ever found."""
        self._texts[row] = []
        return 0

    def pack(self, chunks: Sequence[Chunk]) -> Pack:
        """The whole text of every row, the chunk's tokens at its end."""
        ids: list[int] = []
        positions: list[int] = []
        wanted: list[int] = []
        lengths: list[int] = []
        for chunk in chunks:
            text = self._texts[chunk.row]
            del text[chunk.start :]
            text += chunk.ids
            ids += text
            positions += range(len(text))
            wanted += range(len(ids) - chunk.wanted, len(ids))
            lengths.append(len(text))
        layout = Layout(0, tuple(lengths), tuple(lengths), None, None, None)
        tensors = (torch.tensor(values, device=self._device) for values in (ids, positions, wanted))
        first, second, third = tensors
        return Pack(first[None], second[None], third, View(layout))

    def commit(self, row: int, tokens: Sequence[int]) -> None:
        """Nothing is kept that others could find."""

    def truncate(self, row: int, length: int) -> None:
        """Forget a row's tokens from `length` on."""
        del self._texts[row][length:]

    def release(self, row: int) -> None:
        """End a row."""
        del self._texts[row]

    @property
    def reserved_bytes(self) -> int:
        """No keys and values are kept."""
        return 0

    @property
    def used_bytes(self) -> int:
        """No keys and values are kept."""
        return 0
