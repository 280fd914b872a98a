"""Attention of packed rows over paged keys and values, in readable torch: the explanation and the oracle.

Every row attends to its own tokens only (see layout.py for who sees what). Grouped-query heads are never
repeated in memory: query heads h·g … h·g + g - 1 read key and value head h.

All functions take and return queries as [tokens, heads, head_dim] and work in any floating dtype.
`scale` multiplies the scores, `window` is the sliding window in tokens (None: everything before), and
`softcap` c bends scores s to c · tanh(s / c), as Gemma 2 does.

Sources: Vaswani et al. 2017 (attention); Ainslie et al. 2023, "GQA"; Kwon et al. 2023 (paged keys and values).
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.backends.cuda import SDPAParams, can_use_flash_attention
from torch.nn.attention.bias import causal_lower_right

from labkit.errors import LabkitError
from labkit.kernels.layout import Layout
from labkit.kernels.pages import Pages, gather_range, read, slots_of

QUERY_TILE = 256
"""Queries whose scores are held at once where scores must be written out (soft cap)."""

DECODE_ROWS = 8
"""Rows that a CPU decodes at once."""


class Decode(Protocol):
    """The contract of `paged_decode`, which the Triton kernel shares."""

    def __call__(
        self,
        query: Tensor,
        pages: Pages,
        table: Tensor,
        visible: Tensor,
        *,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
    ) -> Tensor: ...


def paged_decode(
    query: Tensor,
    pages: Pages,
    table: Tensor,
    visible: Tensor,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """One query a row over the row's paged tokens.

    On a CPU rows are taken a few at a time, short ones with short ones: little is padded, and what is gathered
    still lies in the processor's cache when attention reads it (32 rows of 400 tokens: 4 times faster).

    Args:
        query: [rows, heads, head_dim]; its key and value are already in the store.
        table: int32 [rows, blocks], the block ids of each row.
        visible: int32 [rows], tokens that the query sees, itself included. A row of 0 gives zeros.

    Returns:
        [rows, heads, head_dim] in the dtype of the query.
    """
    if query.is_cuda or len(query) <= DECODE_ROWS:
        return _decode_rows(query, pages, table, visible, scale, window, softcap)
    out = torch.empty_like(query)
    for some in visible.argsort().split(DECODE_ROWS):
        out[some] = _decode_rows(query[some], pages, table[some], visible[some], scale, window, softcap)
    return out


def _decode_rows(
    query: Tensor,
    pages: Pages,
    table: Tensor,
    visible: Tensor,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> Tensor:
    """paged_decode with one gather for all rows and one attention call.

    The last tokens of every row are laid out right-aligned, [rows, span]. What a shorter row lacks in front
    is filled with its own first token and masked: memory of other rows is never read, so that a NaN there
    stays there.
    """
    rows, heads, dim = query.shape
    longest = table.shape[1] * pages.block_size
    if not query.is_cuda:  # on a GPU, asking for the longest row would stop the host until the device is done
        longest = min(longest, max(1, int(visible.max()))) if rows else 1
    span = longest if window is None else min(window, longest)
    positions = visible[:, None].long() - span + torch.arange(span, device=query.device)
    seen = positions >= 0
    keys, values = read(pages, slots_of(table, positions.clamp(min=0), pages.block_size), query.dtype)
    grouped = query.view(rows, keys.shape[2], -1, dim)  # the heads that share a KV head act as its queries
    keys, values, mask = keys.transpose(1, 2), values.transpose(1, 2), seen[:, None, None, :]
    if softcap:
        out = _soft_capped(grouped, keys, values, mask, scale, softcap)
    else:
        out = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask, scale=scale)
    return out.reshape(rows, heads, dim).masked_fill((visible == 0)[:, None, None], 0.0)


def paged_attention(
    query: Tensor,
    pages: Pages,
    layout: Layout,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    fresh: tuple[Tensor, Tensor] | None = None,
    decode: Decode = paged_decode,
) -> Tensor:
    """Packed rows, decodes and chunks mixed, over a store that already holds this step's keys and values.

    Args:
        query: [tokens, heads, head_dim].
        fresh: this step's keys and values [tokens, kv_heads, head_dim]. A chunk that starts its row reads
            them instead of gathering them back from the store. A quantised store ignores them: every token,
            new or old, is read as it was stored, so that the cut into chunks does not change the result.
        decode: what computes the decode rows.

    Raises:
        LabkitError: the layout has no table.
    """
    if layout.table is None or layout.visible is None:
        raise LabkitError(
            "A layout without a block table came with a paged store.", "Give the layout a table."
        )
    front = layout.decodes
    options: dict[str, Any] = {"scale": scale, "window": window, "softcap": softcap}
    decoded = None
    if front:
        decoded = decode(query[:front], pages, layout.table[:front], layout.visible[:front], **options)
        if front == len(layout.queries):
            return decoded
    out = torch.empty_like(query)
    if decoded is not None:
        out[:front] = decoded
    for row, start, count, length in layout.chunks():
        mine = slice(start, start + count)
        if fresh is not None and count == length and not pages.quantised:
            keys, values = fresh[0][mine], fresh[1][mine]
        else:
            first = 0 if window is None else max(0, length - count - window + 1)
            keys, values = gather_range(pages, layout.table[row], first, length, query.dtype)
        out[mine] = chunk_attention(query[mine], keys, values, **options)
    return out


def packed_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    layout: Layout,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Packed rows without a store: each attends within its own tokens, keys and values [tokens, kv_heads, dim].

    Raises:
        LabkitError: a row has earlier tokens, which would be ignored.
    """
    if layout.queries != layout.lengths:
        raise LabkitError(
            "Rows have tokens before this step, and there is no store to read them from.",
            "Give the whole rows, or a paged cache.",
        )
    out = torch.empty_like(query)
    start = 0
    for count in layout.queries:
        mine = slice(start, start + count)
        out[mine] = chunk_attention(
            query[mine], keys[mine], values[mine], scale=scale, window=window, softcap=softcap
        )
        start += count
    return out


def chunk_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """The last q tokens of one row attend to its last n ≥ q tokens.

    Args:
        query: [q, heads, head_dim].
        keys, values: [n, kv_heads, head_dim]; tokens before them are ones that no query sees.
    """
    if softcap:
        return _soft_capped_chunk(query, keys, values, scale, window, softcap)
    count, length = query.shape[0], keys.shape[0]
    q, k, v = (x.transpose(0, 1)[None] for x in (query, keys, values))  # [1, heads, tokens, dim]
    group = q.shape[1] // k.shape[1]
    windowed = window is not None and window < length
    mask: Any = None
    if windowed or 1 < count < length:
        if not windowed and can_use_flash_attention(SDPAParams(q, k, v, None, 0.0, False, group > 1)):
            mask = causal_lower_right(count, length)  # flash attention without a mask in memory
        else:
            mask = _mask(0, count, count, length, window, query.device)
            if query.is_cuda and group > 1:  # of the kernels that take a mask, none there takes groups
                k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    grouped = k.shape[1] != q.shape[1]
    causal = mask is None and count > 1
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=grouped
    )
    return out[0].transpose(0, 1)


def _soft_capped_chunk(
    query: Tensor, keys: Tensor, values: Tensor, scale: float, window: int | None, softcap: float
) -> Tensor:
    """chunk_attention with a soft cap: a tile of queries at a time, so that scores stay small."""
    count, heads, dim = query.shape
    length, kv_heads = keys.shape[:2]
    grouped = query.view(count, kv_heads, heads // kv_heads, dim).permute(1, 2, 0, 3)
    k, v = keys.transpose(0, 1)[:, None], values.transpose(0, 1)[:, None]  # [kv_heads, 1, n, dim]
    tiles = []
    for first in range(0, count, QUERY_TILE):
        tile = grouped[:, :, first : first + QUERY_TILE]
        mask = _mask(first, tile.shape[2], count, length, window, query.device)
        tiles.append(_soft_capped(tile, k, v, mask, scale, softcap))
    return torch.cat(tiles, 2).permute(2, 0, 1, 3).reshape(count, heads, dim)


def _mask(first: int, tile: int, count: int, length: int, window: int | None, device: torch.device) -> Tensor:
    """Which of `length` keys queries first … first + tile - 1 of `count` see: bool [tile, length]."""
    position = torch.arange(first, first + tile, device=device)[:, None] + (length - count)
    behind = position - torch.arange(length, device=device)
    return (behind >= 0) if window is None else (behind >= 0) & (behind < window)


def _soft_capped(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float, softcap: float
) -> Tensor:
    """softmax(c · tanh(q·k · scale / c)) · v with scores in float32 at least; [..., tokens, dim] as in SDPA."""
    wide = torch.promote_types(query.dtype, torch.float32)
    scores = (query @ keys.transpose(-1, -2)).to(wide) * scale
    scores = (softcap * torch.tanh(scores / softcap)).masked_fill(~mask, -torch.inf)
    return scores.softmax(-1).to(query.dtype) @ values
