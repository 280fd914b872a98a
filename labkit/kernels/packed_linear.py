"""Linear layers whose weights are packed: unpacked on the way from memory to the multiplication, never in memory.

A step of a few tokens is as fast as its weights can be read, so half the bytes are half the time, as long as the
processors unpack faster than memory delivers. At 4 bits an H200 delivers more than twenty weights a clock to each of
its processors: turning each into a float would take them longer than reading it. So for a few tokens it is x that is
turned, once for all weights:

    x = f · (256 · upper + lower)        f = max |x| of a chunk / 32512, upper and lower signed bytes

and the tensor cores multiply integers by integers, exactly. A weight of 8 bits goes to them as it came from memory,
two of 4 bits after a shift and one logical operation each. A chunk of x, the columns of one group, loses less than
2⁻¹⁶ of its largest number, which is less than bfloat16 loses of it (2⁻⁹). fp8 goes as float16, which holds it, and so
does x. Zero points cost nothing for each weight: Σ (q - z) · x = Σ q · x - z · Σ x.

More tokens are as fast with plain numbers: the weights as whole numbers in the dtype of x, which holds them exactly;
groups too small for the cores' operands are scaled first. Beyond MOST tokens the arithmetic decides: the weight is
unpacked into memory and multiplied by torch.

The kernels are in packed_planes_triton.py and packed_linear_triton.py. Sums have a fixed order, as in linear.py, whose
splits and counters serve here too.

Sources: Frantar et al. 2024, "MARLIN" (4-bit weights at many tokens); Drumond et al. 2018, "Training DNNs with hybrid
block floating point" (a scale for a chunk of numbers).
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from labkit.errors import LabkitError
from labkit.kernels import linear as plain
from labkit.kernels.device import FLOATS, available, dependent, knows_fp8, power, starts_early
from labkit.kernels.gated import gated
from labkit.kernels.packed import Packed
from labkit.kernels.packed_tiling import NARROW, PackedTiling, chunks, padded, tiling_for
from labkit.kernels.rms_norm import Norm, rms_norm

MOST = 256
"""The most tokens that go to the kernels."""

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
    norm: Norm | None = None,
    gate: str | None = None,
) -> Tensor:
    """activation(x · ŵᵀ + bias) + add, by the kernels for up to MOST tokens on a GPU, else by torch.

    Args:
        x: [T, K], in any floating dtype; [T, 2 K] with a gate.
        norm: an RMSNorm that x goes through first. The kernel for few tokens does it on the way: one launch less, and x
            is not rounded in between.
        gate: "silu", "gelu" or "gelu_tanh": x is activation(first half) · second half, on the way as well.
        weight: [N, K], perhaps some rows of a larger one.
        bias, add, activation, counters, pdl: as for labkit.kernels.linear.linear.

    Returns:
        [T, N] in the dtype of x.

    Raises:
        LabkitError: shapes that do not fit, or an unknown activation.
    """
    _check(x, weight, bias, add, activation, gate)
    runs = available(x.device) and (weight.format.kind != "fp8" or knows_fp8(x.device))
    if 0 < len(x) <= MOST and x.dtype in FLOATS and runs:
        return launch(
            x, weight, bias, add=add, activation=activation, counters=counters, pdl=pdl, norm=norm, gate=gate
        )
    return reference(x, weight, bias, add=add, activation=activation, norm=norm, gate=gate)


def reference(
    x: Tensor,
    weight: Packed,
    bias: Tensor | None = None,
    *,
    add: Tensor | None = None,
    activation: str | None = None,
    norm: Norm | None = None,
    gate: str | None = None,
) -> Tensor:
    """`packed_linear` in torch: the weight in full, then labkit.kernels.linear.reference."""
    x = _prepared(x, norm, gate)
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
    norm: Norm | None = None,
    gate: str | None = None,
    tiling: PackedTiling | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """The kernels, with the contract of `packed_linear`, for any number of tokens.

    Args:
        tiling: tuned or chosen from sizes if not given.
        out: contiguous [T, N].
    """
    kernels = _kernels()
    tokens, (n, k), made = len(x), weight.shape, weight.format
    tiling = tiling or tiling_for(x.device, x.dtype, made, n, k, padded(tokens))
    if not tiling.planes:
        x, norm, gate = _prepared(x, norm, gate, pdl), None, None
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
    early = pdl and tiling.planes and not kernels.INTERPRETED and starts_early(x.device)
    cut = _cut(weight, tiling, activation, splits > 1, counters is not None)
    places = (x, weight.values, weight.scales, weight.zeros, bias, add, out, partial, counters)
    scale_row = 0 if made.tensor else weight.scales.shape[1]
    sizes = (n, k, width, weight.values.stride(0), scale_row, splits, tokens, x.stride(0))
    if tiling.planes:
        count = padded(tokens)
        wide = max(NARROW, power(chunks(made, count, tiling.tile)))
        cut["num_warps"] = tiling.warps if wide == NARROW else min(2, tiling.warps)
        kernels.planes_kernel[(blocks, splits)](
            *places, *sizes, norm and norm.weight, norm.eps if norm else 0.0, TOKENS=count, CHUNKS=wide, PDL=early,
            COMPILED=not kernels.INTERPRETED, OFFSET=norm.offset if norm else 0.0, GATE=gate, **cut,
            **dependent(early),
        )  # fmt: skip
    else:
        count = min(BLOCK, max(16, padded(tokens)))
        kernels.tile_kernel[(blocks, splits, -(-tokens // count))](
            *places, *sizes, TOKENS=count, WIDE=kernels.INTERPRETED or x.dtype == torch.float32, **cut,
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
        "ACTIVATION": activation, "SPLIT": split, "COUNTED": counted,
        "STAGES": tiling.stages, "num_stages": tiling.stages, "num_warps": tiling.warps,
    }  # fmt: skip


def _prepared(x: Tensor, norm: Norm | None, gate: str | None, pdl: bool = False) -> Tensor:
    """x through its norm and its gate."""
    if norm is not None:
        x = rms_norm(x, norm.weight, norm.eps, offset=norm.offset, wide=norm.wide, pdl=pdl)[0]
    return x if gate is None else gated(x, gate, pdl=pdl)


def _check(
    x: Tensor,
    weight: Packed,
    bias: Tensor | None,
    add: Tensor | None,
    activation: str | None,
    gate: str | None,
) -> None:
    n, k = weight.shape
    k = k if gate is None else 2 * k
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
