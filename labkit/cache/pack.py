"""A packed step: tokens of many rows one after the other, and one forward pass over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from labkit.cache.attention import NAME
from labkit.errors import LabkitError
from labkit.kernels.layout import Layout
from labkit.kernels.pages import Pages
from labkit.models import LM


@dataclass(frozen=True)
class Chunk:
    """Tokens of one row to run: a whole prompt, a part of one, or a single token.

    Args:
        row: whose tokens they are.
        start: position of the first.
        ids: the tokens.
        wanted: how many of the last positions need logits; 0 inside a prompt.
    """

    row: int
    start: int
    ids: Sequence[int]
    wanted: int = 1


@dataclass(frozen=True)
class View:
    """What attention needs of a cache for one step; handed to the model's forward as `kv`."""

    layout: Layout
    layers: Sequence[Pages] | None = None

    def pages(self, layer: int) -> Pages | None:
        """The keys and values of one layer, or None where nothing is stored."""
        return self.layers[layer] if self.layers is not None else None


@dataclass(frozen=True)
class Pack:
    """One step's input: ids and positions [1, tokens], the positions whose logits are wanted [n], and the cache."""

    ids: torch.Tensor
    positions: torch.Tensor
    wanted: torch.Tensor
    kv: View


class KVCache(Protocol):
    """What the caches have in common, so that one can be swapped for another.

    Rows are numbers that the caller chooses.
    """

    def open(self, row: int, tokens: Sequence[int]) -> int:
        """Begin a row that will hold `tokens`; returns how many of them need not be run."""

    def pack(self, chunks: Sequence[Chunk]) -> Pack:
        """Make room for the chunks and lay them out; order is kept. Raises OutOfBlocks when full."""

    def commit(self, row: int, tokens: Sequence[int]) -> None:
        """All of a row's `tokens` have run and stand."""

    def truncate(self, row: int, length: int) -> None:
        """Forget a row's tokens from `length` on."""

    def release(self, row: int) -> None:
        """End a row."""

    @property
    def reserved_bytes(self) -> int:
        """Memory set aside for open rows [B]."""

    @property
    def used_bytes(self) -> int:
        """Memory that holds keys and values of tokens [B]."""


def forward(lm: LM, pack: Pack) -> torch.Tensor:
    """Run a packed step through a model whose attention `labkit.cache.attention.install` replaced.

    Returns:
        Logits [len(pack.wanted), vocabulary].

    Raises:
        LabkitError: the model has another attention, which would ignore the cache.
    """
    if lm.config._attn_implementation != NAME:
        raise LabkitError(
            "The model has its own attention, which ignores the pack's cache.", "Call install(lm.model)."
        )
    output: Any = lm.model(
        input_ids=pack.ids,
        position_ids=pack.positions,
        use_cache=False,
        logits_to_keep=pack.wanted,
        kv=pack.kv,
    )
    logits: torch.Tensor = output.logits[0]
    return logits


def wanted_positions(chunks: Sequence[Chunk]) -> list[int]:
    """Places in the pack whose logits are wanted, chunk by chunk."""
    places: list[int] = []
    end = 0
    for chunk in chunks:
        end += len(chunk.ids)
        places += range(end - chunk.wanted, end)
    return places


def decodes_first(chunks: Sequence[Chunk]) -> int:
    """How many one-token chunks are at the front."""
    for index, chunk in enumerate(chunks):
        if len(chunk.ids) != 1:
            return index
    return len(chunks)
