"""The paged KV cache: block tables, and the memory of the blocks (PagedAttention, Kwon et al. 2023).

A contiguous cache, one stretch of memory for each row's longest possible text, is the special case of a
block so large that a row needs only one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from labkit.cache.host_store import HostStore
from labkit.cache.host_tier import HostTier
from labkit.cache.numbers import block_table
from labkit.cache.pack import Chunk, Pack, View, decodes_first, wanted_positions
from labkit.cache.tables import BlockTables
from labkit.errors import LabkitError
from labkit.kernels.layout import Layout
from labkit.kernels.pages import Pages, allocate, copy_blocks
from labkit.models import LM
from labkit.models.memory import GIB, free_bytes
from labkit.profile import shape_of


def token_bytes(lm: LM, *, quantised: bool = False) -> int:
    """KV bytes of one token in all layers; int8 adds a 4-byte scale for each head of K and of V."""
    shape = shape_of(lm.config)
    element = 1 if quantised else lm.dtype.itemsize
    per_head = shape.head_dim * element + (4 if quantised else 0)
    return 2 * shape.layers * shape.kv_heads * per_head


class PagedCache:
    """Paged keys and values of a model's layers.

    Args:
        lm: the model.
        blocks: how many blocks its rows share.
        block_size: tokens in a block.
        quantised: keep K and V in int8, one scale per token and head.
        share: let rows find blocks that others published.
        host: where published blocks go that the pool gives out again, and come back from (host_tier.py).

    Raises:
        LabkitError: the blocks do not fit into the device's memory, or a host store without sharing.
    """

    def __init__(
        self,
        lm: LM,
        blocks: int,
        block_size: int = 16,
        *,
        quantised: bool = False,
        share: bool = True,
        host: HostStore | None = None,
    ) -> None:
        if host is not None and not share:
            raise LabkitError(
                "A host store keeps shared blocks, and sharing is off.", "Leave one of them out."
            )
        self.token_bytes = token_bytes(lm, quantised=quantised)
        self._device = lm.device
        size, free = (blocks + 1) * block_size * self.token_bytes, free_bytes(lm.device)
        if size > free:
            raise LabkitError(
                f"A KV cache of {blocks} blocks takes {size / GIB:.1f} GiB; {free / GIB:.1f} GiB are free.",
                f"{max(0, free // (block_size * self.token_bytes) - 1)} blocks would fit.",
            )
        prefix = None
        if host is not None:
            content = self.run_copies, self.read_block, self.write_block
            prefix = HostTier(blocks, block_size, host, *content, lm.device)
        self.tables = BlockTables(blocks, block_size, share=share, prefix=prefix)
        shape = shape_of(lm.config)
        self.layers: list[Pages] = [
            allocate(
                blocks + 1,
                block_size,
                shape.kv_heads,
                shape.head_dim,
                lm.dtype,
                lm.device,
                quantised=quantised,
            )
            for _ in range(shape.layers)
        ]

    def open(self, row: int, tokens: Sequence[int]) -> int:
        """Begin a row with what is published of its beginning."""
        return self.tables.open(row, tokens)

    def pack(self, chunks: Sequence[Chunk]) -> Pack:
        """Reserve, copy what is shared and will be written, and lay the chunks out."""
        tables, device = self.tables, self._device
        slots: list[int] = []
        for chunk in chunks:
            stop = chunk.start + len(chunk.ids)
            tables.reserve(chunk.row, stop)
            slots += tables.slots(chunk.row, chunk.start, stop)
        self.run_copies()
        blocks = [tables.rows[chunk.row].blocks for chunk in chunks]
        lengths = tuple(chunk.start + len(chunk.ids) for chunk in chunks)
        layout = Layout(
            decodes_first(chunks),
            tuple(len(chunk.ids) for chunk in chunks),
            lengths,
            torch.tensor(slots, device=device),
            torch.from_numpy(block_table(blocks)).to(device),
            torch.tensor(lengths, dtype=torch.int32, device=device),
        )
        positions = [p for chunk in chunks for p in range(chunk.start, chunk.start + len(chunk.ids))]
        ids = [token for chunk in chunks for token in chunk.ids]
        return Pack(
            torch.tensor([ids], device=device),
            torch.tensor([positions], device=device),
            torch.tensor(wanted_positions(chunks), dtype=torch.long, device=device),
            View(layout, self.layers),
        )

    @torch.inference_mode()
    def run_copies(self) -> None:
        """Carry out the copies that rows need before they write into blocks they shared."""
        sources, targets = self.tables.take_copies()
        if sources:
            source, target = (torch.tensor(ids, device=self._device) for ids in (sources, targets))
            for pages in self.layers:
                copy_blocks(pages, source, target)

    @torch.inference_mode()
    def read_block(self, block: int) -> list[torch.Tensor]:
        """A block's keys and values (and scales), each [layers, block_size, …], copies that wait left out."""
        return [torch.stack([tensor[block] for tensor in part]) for part in self._parts()]

    @torch.inference_mode()
    def write_block(self, block: int, content: Sequence[torch.Tensor]) -> None:
        """Put back what `read_block` gave; on a GPU, when the steps launched before are done."""
        for part, new in zip(self._parts(), content, strict=True):
            for tensor, layer in zip(part, new, strict=True):
                tensor[block] = layer

    def _parts(self) -> list[tuple[torch.Tensor, ...]]:
        """The keys of all layers, then the values, then the scales if there are any."""
        return list(zip(*(pages.tensors for pages in self.layers), strict=True))

    def close(self) -> None:
        """Give the memory back, on the device and on the host."""
        self.layers.clear()
        self.tables.prefix.close()

    def commit(self, row: int, tokens: Sequence[int]) -> None:
        """All of a row's `tokens` have run and stand: their full blocks may be found by others."""
        self.tables.commit(row, len(tokens), tokens)

    def truncate(self, row: int, length: int) -> None:
        """Forget a row's tokens from `length` on; blocks that held only those return to the pool."""
        self.tables.truncate(row, length)

    def release(self, row: int) -> None:
        """End a row; its blocks return to the pool."""
        self.tables.release(row)

    @property
    def reserved_bytes(self) -> int:
        """Memory of the blocks that rows hold [B]."""
        return self.tables.pool.used * self.tables.block_size * self.token_bytes

    @property
    def used_bytes(self) -> int:
        """Memory of the places in those blocks that hold a token [B]."""
        return round(self.reserved_bytes * (1 - self.tables.waste))


class ContiguousCache(PagedCache):
    """One stretch of memory for each row, as long as the longest text that it may become.

    Args:
        lm: the model.
        rows: how many rows at once.
        capacity: tokens that each may reach.
    """

    def __init__(self, lm: LM, rows: int, capacity: int) -> None:
        super().__init__(lm, rows, capacity, share=False)
