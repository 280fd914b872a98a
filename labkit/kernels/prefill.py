"""Attention of packed chunks over paged keys and values (reference only)."""

from __future__ import annotations

import torch
from torch import Tensor

from labkit.kernels.attention import chunk_attention
from labkit.kernels.pages import Pages, gather_range


def varlen_attention(
    query: Tensor,
    pages: Pages,
    table: Tensor,
    starts: Tensor,
    visible: Tensor,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    rows: int | None = None,
) -> Tensor:
    """Row r owns queries starts[r] … starts[r+1] - 1, the last of which sees visible[r] tokens."""
    out = torch.zeros_like(query, memory_format=torch.contiguous_format)
    edges, lengths = starts.tolist(), visible.tolist()
    for row in range(len(lengths) if rows is None else rows):
        start, stop, length = edges[row], edges[row + 1], lengths[row]
        if start == stop:
            continue
        first = 0 if window is None else max(0, length - (stop - start) - window + 1)
        keys, values = gather_range(pages, table[row], first, length, query.dtype)
        out[start:stop] = chunk_attention(
            query[start:stop], keys, values, scale=scale, window=window, softcap=softcap
        )
    return out
