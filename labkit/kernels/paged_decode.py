"""Decode attention over paged keys and values in Triton: one query a row, as fast as memory can be read.

Decoding reads every key and value once and does almost nothing with it, so speed is bandwidth: all
processors must read all the time. A program takes one row, one KV head and one share of the row's context,
walks through it tile by tile with an online softmax in base 2, and leaves a partial result. The shares are then
weighed together (flash-decoding): with `counters` by the program that comes last, in the same launch, else by a
second small kernel, in the same order. All query heads of a group are served by one reading.

- A tile spans several blocks: the ids come from the table token by token, so any block size will do.
- Lengths are read on the device. The host chooses the number of shares from sizes that do not change from
  step to step, so a captured CUDA graph stays valid while rows grow; shares beyond a row's end do nothing.
- Reductions have a fixed order. But the number of shares depends on how many rows there are, so a row's
  last bits may depend on its neighbours.
- Two ways to multiply: `dot` gives a group of heads to the tensor cores (padded to 16 rows); without it
  (one query head for each KV head) every place in the tile keeps a softmax of its own until the end, and no
  thread waits for another inside the loop.
- int8 pages: the scales multiply scores and weights, which is the same as multiplying keys and values.

The kernels are in paged_decode_triton.py, the torch reference in attention.py.

Sources: Dao et al. 2023, "Flash-Decoding for long-context inference"; Milakov & Gimelshein 2018 (online
softmax); Kwon et al. 2023 (paged attention).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from labkit.errors import LabkitError
from labkit.kernels.attention import paged_decode
from labkit.kernels.device import available, dependent, power, processors
from labkit.kernels.pages import Pages

LOG2E = math.log2(math.e)
MOST_SHARES = 128
MOST_COUNTED = 4096
"""Numbers that the last program weighs at a time, [shares, head_dim]: with more, registers would be short for all."""

LEAST_SHARE = 64  # tokens: a smaller share costs more than it saves (measured on an H200)


def decode(
    query: Tensor,
    pages: Pages,
    table: Tensor,
    visible: Tensor,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    counters: Tensor | None = None,
    pdl: bool = False,
) -> Tensor:
    """Decode attention by the kernel where it runs, by the torch reference elsewhere: same contract.

    The kernel wants an NVIDIA GPU from Ampere on (or one that says it can do as much), float32 or a half
    precision, and head dimensions up to 256.

    Args:
        counters: see `launch`; no effect on the reference, as pdl.
        pdl: programmatic dependent launch, see rms_norm.launch.
    """
    runs = query.is_cuda and query.dtype.itemsize <= 4 and query.shape[2] <= 256
    function = (
        partial(launch, counters=counters, pdl=pdl) if runs and available(query.device) else paged_decode
    )
    return function(query, pages, table, visible, scale=scale, window=window, softcap=softcap)


@dataclass(frozen=True)
class Tuning:
    """How a program works; results differ by rounding only.

    Args:
        tile: tokens at a time, a power of 2 and at least 16.
        warps: of a program.
        stages: tiles in flight.
        dot: multiply on tensor cores. Only one query head for each KV head can do without.
    """

    tile: int
    warps: int
    stages: int
    dot: bool


def default_tuning(head_dim: int, group: int, element: int) -> Tuning:
    """Tiles of 16 KiB of half-precision keys and as much of values; other types need registers to convert.

    Measured on an H200 for head dimensions 64, 128 and 256 in bf16 and 128 in int8 (where two warps a program read
    a group's keys half as fast again as four); elsewhere a guess.

    Args:
        group: query heads for each KV head.
        element: bytes of a stored number.
    """
    tile = max(16, min(128, 16384 // (power(head_dim) * max(element, 2))))
    if element == 2:
        return Tuning(tile, 4, 2 if head_dim <= 128 else 3, True)
    if group == 1:  # one query needs no matrix product, and conversion is the larger part of the work
        return Tuning(max(16, tile // 4) if element == 1 else tile, 4, 1, False)
    return Tuning(tile, 2, 2, True) if element == 1 else Tuning(tile, 4, 3, True)


def choose_shares(programs: int, tokens: int, processors: int) -> int:
    """Into how many shares each row's context is cut.

    Enough for about two waves of two programs a processor, so that none idles while others finish.

    Args:
        programs: rows · KV heads.
        tokens: the most that a row may attend to (from the width of the table, not from lengths).
        processors: streaming multiprocessors of the GPU.
    """
    wanted = math.ceil(4 * processors / max(1, programs))
    return max(1, min(wanted, MOST_SHARES, tokens // LEAST_SHARE))


def scratch_numbers(rows: int, heads: int, head_dim: int, shares: int) -> int:
    """float32 numbers of scratch that `launch` needs."""
    return rows * heads * shares * (head_dim + 1) if shares > 1 else 0


def launch(
    query: Tensor,
    pages: Pages,
    table: Tensor,
    visible: Tensor,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    shares: int | None = None,
    tuning: Tuning | None = None,
    scratch: Tensor | None = None,
    out: Tensor | None = None,
    counters: Tensor | None = None,
    pdl: bool = False,
) -> Tensor:
    """The kernel, with the contract of labkit.kernels.attention.paged_decode.

    Args:
        shares, tuning: how the work is cut; chosen from sizes if not given.
        scratch: float32 [scratch_numbers(…)], which the layers of a captured graph may share.
        out: contiguous [rows, heads, head_dim].
        counters: int32 zeros, left as zeros, [rows · kv_heads] or more (see linear.arrival_counters): saves the second
            launch of a split context where its shares are few. Too few of them are not used.
        pdl: programmatic dependent launch, see rms_norm.launch.

    Raises:
        LabkitError: scratch is too small, or the heads do not form groups.
    """
    rows, heads, dim = query.shape
    kv_heads = pages.keys.shape[2]
    group = heads // kv_heads
    if group * kv_heads != heads:
        raise LabkitError(
            f"{heads} query heads do not share {kv_heads} KV heads evenly.", "Check the shapes."
        )
    out = torch.empty(rows, heads, dim, dtype=query.dtype, device=query.device) if out is None else out
    if not rows:
        return out
    visible = visible.contiguous()
    tuning = tuning or default_tuning(dim, group, pages.keys.element_size())
    tokens = table.shape[1] * pages.block_size
    shares = shares or choose_shares(rows * kv_heads, min(tokens, window or tokens), processors(query.device))
    needed = scratch_numbers(rows, heads, dim, shares)
    if scratch is None:
        scratch = torch.empty(needed, dtype=torch.float32, device=query.device)
    if scratch.numel() < needed:
        raise LabkitError(
            f"Scratch of {scratch.numel()} numbers was given, {needed} are needed.", "Enlarge it."
        )
    partial, sums = scratch[: rows * heads * shares * dim], scratch[rows * heads * shares * dim :]
    cut = {"DIM": dim, "DIM_PAD": max(16, power(dim)), "TILE": tuning.tile,
           "LEAST": -(-LEAST_SHARE // tuning.tile) * tuning.tile, "WINDOW": window or 0,
           "SHARES_PAD": power(shares), "PDL": pdl, **dependent(pdl)}  # fmt: skip
    few = power(shares) * max(16, power(dim)) <= MOST_COUNTED
    if shares == 1 or not few or (counters is not None and counters.numel() < rows * kv_heads):
        counters = None
    _attend(query, pages, table, visible, out, partial, sums, counters, scale, softcap, shares, tuning, cut)
    if shares > 1 and counters is None:
        _kernels().combine_kernel[(heads, rows)](partial, sums, visible, out, shares, num_warps=4, **cut)
    return out


def _attend(
    query: Tensor,
    pages: Pages,
    table: Tensor,
    visible: Tensor,
    out: Tensor,
    partial: Tensor,
    sums: Tensor,
    counters: Tensor | None,
    scale: float,
    softcap: float | None,
    shares: int,
    tuning: Tuning,
    cut: dict[str, Any],
) -> None:
    """Launch the first kernel: one program for each KV head, share and row."""
    kernels = _kernels()
    (rows, heads, _), kv_heads = query.shape, pages.keys.shape[2]
    query = query if query.stride(2) == 1 else query.contiguous()
    table = table if table.stride(1) == 1 else table.contiguous()
    dot = tuning.dot or heads > kv_heads
    kernels.attend_kernel[(kv_heads, shares, rows)](
        query, pages.keys, pages.values, pages.key_scales, pages.value_scales, table, visible, out, partial, sums,
        counters,
        2 * LOG2E * scale / softcap if softcap else LOG2E * scale,
        query.stride(0), query.stride(1), table.stride(0), shares,
        KV_HEADS=kv_heads,
        GROUP=heads // kv_heads,
        ROWS=max(16, power(heads // kv_heads)) if dot else 1,
        BLOCK=pages.block_size,
        CAP=LOG2E * softcap if softcap else 0.0,
        QUANTISED=pages.quantised,
        SPLIT=shares > 1,
        COUNTED=counters is not None,
        DOT=dot,
        WIDE=kernels.INTERPRETED or query.dtype == torch.float32,  # the interpreter multiplies the bits of bf16
        STAGES=tuning.stages,
        num_warps=tuning.warps,
        num_stages=tuning.stages,
        **cut,
    )  # fmt: skip


def _kernels() -> ModuleType:
    """Imported on first use: Triton does not exist everywhere, and its interpreter must be chosen before."""
    from labkit.kernels import paged_decode_triton

    return paged_decode_triton
