"""Linear layers whose weights are packed: unpacked on the way from memory to the multiplication, never in memory.

A step of a few tokens is as fast as its weights can be read, so half the bytes are half the time, as long as the
processors unpack faster than memory delivers. At 4 bits an H200 delivers more than twenty weights a clock to each of
its processors, which leaves some five instructions for each weight. So

- a thread takes eight bytes, multiplies and adds them up in registers, and applies the group's scale to the sum;
- zero points cost nothing for each weight: Σ (q - z) · x = Σ q · x - z · Σ x;
- four bits become a float by logic: written into the lower bits of a float32 that stands for 2²³, a number is added to
  it, exactly. The conversion of integers, which serves for eight bits, runs at an eighth of the pace.

From 2 tokens on the tensor cores multiply, the weights as whole numbers in the dtype of x, which holds them exactly;
groups too small for the cores' operands are scaled first. Beyond MOST tokens the arithmetic decides: the weight is
unpacked into memory and multiplied by torch.

The kernels are in packed_linear_triton.py. Sums have a fixed order, as in linear.py, whose splits and counters serve
here too.

Sources: Frantar et al. 2024, "MARLIN" (4-bit weights at many tokens); Kim et al. 2022, "Who says elephants can't run"
(integers through the bits of floats).
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from labkit.errors import LabkitError
from labkit.kernels import linear as plain
from labkit.kernels.device import FLOATS, available, dependent, knows_fp8, starts_early
from labkit.kernels.linear_tiling import padded
from labkit.kernels.packed import Packed
from labkit.kernels.packed_tiling import PackedTiling, tiling_for

MOST = 256
"""The most tokens that go to the kernels."""

MAGIC = 0x4B000000
"""The bits of the float32 2²³, whose last place is 1."""

BLOCK = 64
"""Tokens that a program of the tensor cores takes at a time."""


def packed_linear(
    x: Tensor,
    weight: Packed,
    bias: Tensor | None = None,
    *,
    add: Tensor | None = None,
    activation: str | None = None,
    counters: Tensor | None = None,
    pdl: bool = False,
) -> Tensor:
    """activation(x · ŵᵀ + bias) + add, by the kernels for up to MOST tokens on a GPU, else by torch.

    Args:
        x: [T, K], in any floating dtype.
        weight: [N, K], perhaps some rows of a larger one.
        bias, add, activation, counters, pdl: as for labkit.kernels.linear.linear.

    Returns:
        [T, N] in the dtype of x.

    Raises:
        LabkitError: shapes that do not fit, or an unknown activation.
    """
    _check(x, weight, bias, add, activation)
    runs = available(x.device) and (weight.format.kind != "fp8" or knows_fp8(x.device))
    if 0 < len(x) <= MOST and x.dtype in FLOATS and runs:
        return launch(x, weight, bias, add=add, activation=activation, counters=counters, pdl=pdl)
    return reference(x, weight, bias, add=add, activation=activation)


def reference(
    x: Tensor,
    weight: Packed,
    bias: Tensor | None = None,
    *,
    add: Tensor | None = None,
    activation: str | None = None,
) -> Tensor:
    """`packed_linear` in torch: the weight in full, then labkit.kernels.linear.reference."""
    return plain.reference(x, weight.dequantise(x.dtype), bias, add=add, activation=activation)


def launch(
    x: Tensor,
    weight: Packed,
    bias: Tensor | None = None,
    *,
    add: Tensor | None = None,
    activation: str | None = None,
    counters: Tensor | None = None,
    pdl: bool = False,
    tiling: PackedTiling | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """The kernels, with the contract of `packed_linear`, for any number of tokens.

    Args:
        tiling: tuned or chosen from sizes if not given.
        out: contiguous [T, N].
    """
    kernels = _kernels()
    (tokens, k), (n, _), made = x.shape, weight.shape, weight.format
    tiling = tiling or tiling_for(x.device, x.dtype, made, n, k, padded(tokens))
    width = weight.values.shape[1]
    splits = tiling.filled(width)
    out = torch.empty(tokens, n, dtype=x.dtype, device=x.device) if out is None else out
    x = x if x.stride(1) == 1 else x.contiguous()
    bias = bias if bias is None else bias.contiguous()
    add = add if add is None else add.contiguous()
    blocks = -(-n // tiling.rows)
    partial: Tensor | None = None
    if splits > 1:
        partial = torch.empty(splits * tokens * n, dtype=torch.float32, device=x.device)
        if counters is not None and counters.numel() < blocks * -(-tokens // BLOCK):
            counters = None
    else:
        counters = None
    early = pdl and tokens == 1 and not kernels.INTERPRETED and starts_early(x.device)
    cut = _cut(weight, tiling, activation, splits > 1, counters is not None)
    places = (x, weight.values, weight.scales, weight.zeros, bias, add, out, partial, counters)
    sizes = (
        n,
        k,
        width,
        weight.values.stride(0),
        weight.scales.stride(0) if len(weight.scales) > 1 else 0,
        splits,
    )
    if tokens == 1:
        words = weight.values if made.kind == "fp8" else weight.values.view(torch.int32)
        kernels.vector_kernel[(blocks, splits)](
            x,
            words,
            *places[2:],
            *sizes,
            MAGIC,
            PDL=early,
            PAIR=tiling.pair,
            **cut,
            **dependent(early),
        )
    else:
        count = min(BLOCK, padded(tokens))
        kernels.tile_kernel[(blocks, splits, -(-tokens // count))](
            *places, *sizes, tokens, x.stride(0), TOKENS=count,
            WIDE=kernels.INTERPRETED or x.dtype == torch.float32, STAGES=tiling.stages, num_stages=tiling.stages, **cut,
        )  # fmt: skip
    if partial is not None and counters is None:
        plain.combine(partial, bias, add, out, splits, activation, early)
    return out


def _cut(
    weight: Packed, tiling: PackedTiling, activation: str | None, split: bool, counted: bool
) -> dict[str, Any]:
    """What a kernel is compiled for."""
    made = weight.format
    return {
        "KIND": made.kind, "GROUP": made.group or 0, "HALF": made.block // 2, "AFFINE": weight.zeros is not None,
        "MIDDLE": made.middle, "ROWS": tiling.rows, "TILE": tiling.tile,
        "ACTIVATION": activation, "SPLIT": split, "COUNTED": counted, "num_warps": tiling.warps,
    }  # fmt: skip


def _check(
    x: Tensor, weight: Packed, bias: Tensor | None, add: Tensor | None, activation: str | None
) -> None:
    n, k = weight.shape
    if x.ndim != 2 or x.shape[1] != k or not x.is_floating_point():
        raise LabkitError(
            f"x {list(x.shape)} {x.dtype} and a packed weight [{n}, {k}] do not multiply.",
            f"Give floats [tokens, {k}].",
        )
    if bias is not None and bias.shape != (n,):
        raise LabkitError(f"A bias {list(bias.shape)} does not fit {n} outputs.", f"Give [{n}].")
    if add is not None and add.shape != (len(x), n):
        raise LabkitError(
            f"A residual {list(add.shape)} does not fit the output [{len(x)}, {n}].",
            "Give one number for each output: nothing is broadcast.",
        )
    if activation not in plain.ACTIVATIONS:
        raise LabkitError(f"No activation {activation!r} here.", 'Choose None, "gelu" or "gelu_tanh".')


def _kernels() -> ModuleType:
    """Imported on first use: Triton does not exist everywhere, and its interpreter must be chosen before."""
    from labkit.kernels import packed_linear_triton

    return packed_linear_triton
