"""The paged store of keys and values: fixed-size blocks of tokens, found through a table of block ids.

Position p of a row lies in block table[p // block_size] at offset p % block_size, so a row's tokens may be
scattered over the store and several rows may share a block. A slot is a block and an offset in one number:
slot = block · block_size + offset.

Source: Kwon et al. 2023, "Efficient Memory Management for Large Language Model Serving with PagedAttention".
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

LARGEST = 127
"""Of int8, used symmetrically: -128 stays unused, so that the scale is the same in both directions."""


@dataclass(frozen=True, eq=False)
class Pages:
    """One layer's paged keys and values.

    Args:
        keys: [blocks, block_size, kv_heads, head_dim], floating or int8.
        values: the same shape and dtype.
        key_scales: float32 [blocks, block_size, kv_heads] where keys are int8: key = int8 · scale.
        value_scales: the same for the values.
    """

    keys: Tensor
    values: Tensor
    key_scales: Tensor | None = None
    value_scales: Tensor | None = None

    @property
    def block_size(self) -> int:
        """Tokens in a block."""
        return self.keys.shape[1]

    @property
    def tensors(self) -> list[Tensor]:
        """Keys, values, and their scales if there are any."""
        return [
            each for each in (self.keys, self.values, self.key_scales, self.value_scales) if each is not None
        ]

    @property
    def quantised(self) -> bool:
        """Whether keys and values are int8 with scales."""
        return self.key_scales is not None


def allocate(
    blocks: int,
    block_size: int,
    kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    device: torch.device | str,
    *,
    quantised: bool = False,
) -> Pages:
    """An empty store (zeros). `dtype` is that of keys and values; a quantised store is int8 instead."""
    shape = (blocks, block_size, kv_heads, head_dim)
    stored = torch.int8 if quantised else dtype
    keys, values = (torch.zeros(shape, dtype=stored, device=device) for _ in range(2))
    if not quantised:
        return Pages(keys, values)
    scales = (torch.zeros(shape[:3], dtype=torch.float32, device=device) for _ in range(2))
    return Pages(keys, values, *scales)


def quantise(x: Tensor) -> tuple[Tensor, Tensor]:
    """int8 and float32 scales of x [..., dim], one scale for each vector: amax / 127.

    A vector of zeros has scale 0 and stays zeros; one with a NaN or an infinity comes back as NaN.
    """
    wide = x.float()
    scale = wide.abs().amax(-1) / LARGEST
    steps = wide / torch.where(scale == 0, 1.0, scale)[..., None]
    finite = torch.nan_to_num(steps.round(), nan=1.0)  # the scale is not finite and keeps the fault visible
    return finite.clamp(-LARGEST, LARGEST).to(torch.int8), torch.where(scale.isinf(), torch.nan, scale)


def write(pages: Pages, slots: Tensor, keys: Tensor, values: Tensor) -> None:
    """Store keys and values [tokens, kv_heads, head_dim] at slots, int64 [tokens]; quantises if the store is."""
    for stored, scales, new in (
        (pages.keys, pages.key_scales, keys),
        (pages.values, pages.value_scales, values),
    ):
        if scales is not None:
            new, scale = quantise(new)
            scales.flatten(0, 1).index_copy_(0, slots, scale)
        stored.flatten(0, 1).index_copy_(0, slots, new.to(stored.dtype))


def read(pages: Pages, slots: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Keys and values in `dtype`, dequantised: [*slots.shape, kv_heads, head_dim] for slots of any shape."""
    keys = _read(pages.keys, pages.key_scales, slots, dtype)
    return keys, _read(pages.values, pages.value_scales, slots, dtype)


def _read(stored: Tensor, scales: Tensor | None, slots: Tensor, dtype: torch.dtype) -> Tensor:
    flat = slots.flatten()
    # whole tokens are copied as one row each, which is several times faster than stored[slots] on a CPU
    found = stored.flatten(2).flatten(0, 1).index_select(0, flat).view(*slots.shape, *stored.shape[2:])
    if scales is None:
        return found.to(dtype)
    scale = scales.flatten(0, 1).index_select(0, flat).view(*found.shape[:-1], 1)
    wide = torch.promote_types(dtype, torch.float32)
    return (found.to(wide) * scale.to(wide)).to(dtype)


def slots_of(table: Tensor, positions: Tensor, block_size: int) -> Tensor:
    """Slots int64 of positions [..., n] through tables [..., blocks] of block ids (padding is never read)."""
    blocks = torch.gather(table.long(), -1, positions // block_size)
    return blocks * block_size + positions % block_size


def gather(pages: Pages, table: Tensor, length: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The first `length` keys and values of a row whose blocks are table [n]: [length, kv_heads, head_dim]."""
    return gather_range(pages, table, 0, length, dtype)


def gather_range(
    pages: Pages, table: Tensor, start: int, stop: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Keys and values of positions start … stop - 1 of one row: [stop - start, kv_heads, head_dim]."""
    positions = torch.arange(start, stop, device=table.device)
    return read(pages, slots_of(table, positions, pages.block_size), dtype)


def copy_blocks(pages: Pages, source: Tensor, target: Tensor) -> None:
    """Copy whole blocks, ids [n] to ids [n]: what copy-on-write does before a row writes to a shared block."""
    for tensor in pages.tensors:
        tensor.index_copy_(0, target.long(), tensor.index_select(0, source.long()))
