"""Fused attention of packed chunks over paged keys and values in Triton (FlashAttention, on a paged store).

A chunk of queries costs q · n scores; written to memory and read again they would take longer than the matrix
products. So a program keeps a tile of queries, walks through the keys its queries see, tile by tile, and holds
only what an online softmax needs: the largest score, the sum of weights and the weighted sum of values.

- The grid depends on nothing but the number of tokens, the most rows there may be, and the heads. Where rows
  begin and how long they are is read on the device, so a captured CUDA graph serves any cut into rows. Tiles
  that turn out to be superfluous (about one a row) end at once.
- The query heads of a group lie in one tile, as if each were a query more: their keys and values are read once,
  and a chunk of few tokens still fills the tensor cores.
- Keys that every query of a tile sees need no mask: that part of the walk is a loop of its own, which loads whole
  tiles. Only the diagonal, and the edge of a sliding window, compare positions. What lies outside is not read.
- Tiles late in a row see most keys and start first, so that processors finish together.
- The factor scale · log2(e) is applied where the exponent is formed: one multiply-add and one exp2 a score.
- The id of a block is read one tile ahead. Blocks that hold whole tiles (a contiguous cache) cost one id a tile.
- int8 pages: a tile is dequantised to the dtype of the query as it arrives, as `pages.read` does.
- Reductions have a fixed order. The tile's size depends on how many tokens and rows there are, so a row's last
  bits may depend on its neighbours.

The kernel is in prefill_triton.py, the sizes of its tiles in prefill_tuning.py.

Sources: Dao et al. 2022, "FlashAttention", and Dao 2023, "FlashAttention-2"; Milakov & Gimelshein 2018 (online
softmax); Ainslie et al. 2023, "GQA"; Kwon et al. 2023 (paged attention).
"""

from __future__ import annotations

import math
from functools import cache
from types import ModuleType

import torch
from torch import Tensor

from labkit.errors import LabkitError
from labkit.kernels.attention import chunk_attention
from labkit.kernels.device import available, power
from labkit.kernels.pages import Pages, gather
from labkit.kernels.prefill_tuning import HOPPER_SHARED, Tuning, default_tuning

LOG2E = math.log2(math.e)


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
    """Packed rows over a paged store that already holds this step's keys and values.

    The kernel runs on an NVIDIA GPU from Ampere on (or one that says it can do as much), in float32 or a half
    precision, for head dimensions up to 256; elsewhere, or with a scale that is not positive, the reference.

    Args:
        query: [tokens, heads, head_dim].
        table: int32 [rows, blocks], the block ids of each row.
        starts: int32 [rows + 1], the first query of each row and the end of the last; starts[0] is 0. Rows may be
            empty. Queries from starts[rows] on are padding and give zeros.
        visible: int32 [rows], tokens that a row's last query sees, itself included. A query that sees none gives
            zeros: the first ones of a row with more queries than visible tokens.
        window, softcap: sliding window in tokens, and soft cap of scores (see attention.py).
        rows: take only the first rows of table, starts and visible; None: all.

    Returns:
        [tokens, heads, head_dim] in the dtype of the query.
    """
    half = query.dtype.itemsize <= 4 and query.shape[2] <= 256 and scale > 0
    runs = query.is_cuda and half and available(query.device)
    function = launch if runs else reference
    return function(
        query, pages, table, starts, visible, scale=scale, window=window, softcap=softcap, rows=rows
    )


def reference(
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
    """The contract of `varlen_attention` in readable torch, row by row. It reads lengths on the host."""
    out = torch.zeros_like(query, memory_format=torch.contiguous_format)
    rows = len(visible) if rows is None else rows
    edges, lengths = starts.tolist(), visible.tolist()
    for row in range(rows):
        end, length = edges[row + 1], lengths[row]
        first = max(edges[row], end - length)
        if first < end:
            keys, values = gather(pages, table[row], length, query.dtype)
            skip = 0 if window is None else max(0, length - (end - first) - window + 1)
            out[first:end] = chunk_attention(
                query[first:end], keys[skip:], values[skip:], scale=scale, window=window, softcap=softcap
            )
    return out


def launch(
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
    tuning: Tuning | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """The kernel, with the contract of `varlen_attention`.

    Args:
        tuning: how the work is cut; chosen from sizes if not given.
        out: contiguous [tokens, heads, head_dim].

    Raises:
        LabkitError: the heads do not form groups, a tile cannot hold a group, or the scale is not positive.
    """
    (tokens, heads, dim), kv_heads = query.shape, pages.keys.shape[2]
    group = heads // kv_heads
    rows = len(visible) if rows is None else rows
    if tuning is None:
        sizes = query.element_size(), pages.keys.element_size()
        tuning = default_tuning(dim, group, *sizes, -(-tokens // max(1, rows)), _shared(query.device))
    _check(heads, kv_heads, scale, tuning)
    out = torch.empty(tokens, heads, dim, dtype=query.dtype, device=query.device) if out is None else out
    if not tokens:
        return out
    kernels = _kernels()
    query = query if query.stride(2) == 1 else query.contiguous()
    table = table if table.stride(1) == 1 else table.contiguous()
    starts, visible = starts.contiguous(), visible.contiguous()
    tiles = tokens // (tuning.tile_q // group) + rows + 1
    kernels.attend_kernel[(kv_heads, tiles)](
        query, pages.keys, pages.values, pages.key_scales, pages.value_scales, table, starts, visible, out,
        2 * LOG2E * scale / softcap if softcap else LOG2E * scale,
        tokens, rows, table.stride(0), query.stride(0), query.stride(1),
        KV_HEADS=kv_heads,
        GROUP=group,
        DIM=dim,
        DIM_PAD=max(16, power(dim)),
        BLOCK=pages.block_size,
        TILE_Q=tuning.tile_q,
        TILE_K=tuning.tile_k,
        ROWS_PAD=max(512, power(rows)),  # one compilation for every number of rows that is usual
        WINDOW=window or 0,
        CAP=LOG2E * softcap if softcap else 0.0,
        QUANTISED=pages.quantised,
        WIDE=kernels.INTERPRETED or query.dtype == torch.float32,  # the interpreter multiplies the bits of bf16
        STAGES=tuning.stages,
        num_warps=tuning.warps,
        num_stages=tuning.stages,
    )  # fmt: skip
    return out


def _check(heads: int, kv_heads: int, scale: float, tuning: Tuning) -> None:
    if heads % kv_heads:
        raise LabkitError(
            f"{heads} query heads do not share {kv_heads} KV heads evenly.", "Check the shapes."
        )
    if tuning.tile_q * kv_heads < heads:
        raise LabkitError(
            f"A tile of {tuning.tile_q} rows cannot hold {heads // kv_heads} heads of a group.",
            "Enlarge tuning.tile_q.",
        )
    if not scale > 0:
        raise LabkitError(f"The kernel wants a positive scale, not {scale}.", "Use `reference`.")


def _kernels() -> ModuleType:
    """Imported on first use: Triton does not exist everywhere, and its interpreter must be chosen before."""
    from labkit.kernels import prefill_triton

    return prefill_triton


@cache
def _shared(device: torch.device) -> int:
    if device.type != "cuda":
        return HOPPER_SHARED
    from triton.runtime import driver

    return int(driver.active.utils.get_device_properties(device.index)["max_shared_mem"])
