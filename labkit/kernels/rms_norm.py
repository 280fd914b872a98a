"""RMSNorm, with the residual addition before it in the same pass over memory.

    summed = x + add                                              in x's dtype; x itself without add
    normed = summed · rsqrt(mean(summed²) + eps) · (offset + weight)

The statistics are float32 whatever the dtype, float64 included: that is what transformers' models do. They
differ in where they round. Llama's family casts the unit vector to x's dtype and then multiplies by the
weight; Gemma's (offset 1) and OLMo 2's multiply in float32 and cast once: `wide`.

Unfused, a half-precision model reads and writes every hidden state about ten times here, since each step of
the formula is a kernel of its own. The kernel reads x and add once and writes summed and normed once: one
program takes one token and keeps it in registers, so neither the company of other tokens nor their number
changes a token's bits.

Source: Zhang & Sennrich 2019, "Root Mean Square Layer Normalization".
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

import torch
from torch import Tensor

from labkit.kernels.device import compiles, dependent, power

LARGEST = 32768
"""Numbers in a token's hidden state up to which a program can hold it in registers."""


@dataclass(frozen=True, eq=False)
class Norm:
    """An RMSNorm as data: weight [dim], eps, and where it rounds (see the module's docstring)."""

    weight: Tensor
    eps: float
    offset: float = 0.0
    wide: bool = False


def rms_norm(
    x: Tensor,
    weight: Tensor,
    eps: float,
    *,
    add: Tensor | None = None,
    offset: float = 0.0,
    wide: bool = False,
    pdl: bool = False,
) -> tuple[Tensor, Tensor]:
    """RMSNorm of x [..., H], or of x + add, by the kernel where it runs and in torch elsewhere.

    Args:
        weight: [H].
        add: the residual, shape and dtype of x.
        offset: added to the weight.
        wide: multiply by the weight in float32, before the cast to x's dtype.
        pdl: programmatic dependent launch, see `launch`; no effect on the reference.

    Returns:
        (normed, summed), both as x; summed is x itself without add. Without `wide`, a weight of a wider dtype
        than x's widens normed, as in transformers.
    """
    same = weight.dtype == x.dtype or wide
    runs = compiles(x) and x.shape[-1] <= LARGEST and same and (add is None or add.dtype == x.dtype)
    if runs and not (torch.is_grad_enabled() and weight.requires_grad):
        return launch(x, weight, eps, add=add, offset=offset, wide=wide, pdl=pdl)
    return reference(x, weight, eps, add=add, offset=offset, wide=wide)


def reference(
    x: Tensor,
    weight: Tensor,
    eps: float,
    *,
    add: Tensor | None = None,
    offset: float = 0.0,
    wide: bool = False,
) -> tuple[Tensor, Tensor]:
    """rms_norm in torch, any dtype and device; bit for bit what the families' own modules compute."""
    summed = x if add is None else (x + add).to(x.dtype)
    unit = summed.float()
    unit = unit * torch.rsqrt(unit.pow(2).mean(-1, keepdim=True) + eps)
    if wide:
        scale = offset + weight.float() if offset else weight
        return (unit * scale).to(x.dtype), summed
    scale = offset + weight if offset else weight
    return scale * unit.to(x.dtype), summed


def launch(
    x: Tensor,
    weight: Tensor,
    eps: float,
    *,
    add: Tensor | None = None,
    offset: float = 0.0,
    wide: bool = False,
    warps: int | None = None,
    pdl: bool = False,
) -> tuple[Tensor, Tensor]:
    """The kernel, with the contract of rms_norm for dtypes in FLOATS and at most LARGEST numbers a token.

    Args:
        warps: of a program; chosen from H if not given, so that the order of the sum depends on H only.
        pdl: programmatic dependent launch: start while the kernel before still runs, and wait for it on the
            device (Hopper and later; compiled only).
    """
    hidden = x.shape[-1]
    x, weight = x.contiguous(), weight.contiguous()
    add = add if add is None else add.contiguous()
    normed = torch.empty_like(x)
    summed = x if add is None else torch.empty_like(x)
    if x.numel():
        block = power(hidden)
        _kernels().rms_norm_kernel[(x.numel() // hidden,)](
            x, add, weight, normed, summed, eps,
            HIDDEN=hidden, BLOCK=block, OFFSET=offset, WIDE=wide, PDL=pdl,
            num_warps=warps or default_warps(block), **dependent(pdl),
        )  # fmt: skip
    return normed, summed


def default_warps(block: int) -> int:
    """Warps for a token of `block` numbers: one load of 16 bytes a thread in half precision, at most 16 warps."""
    return max(1, min(16, block // 256))


def _kernels() -> ModuleType:
    """Imported on first use: Triton does not exist everywhere, and its interpreter must be chosen before."""
    from labkit.kernels import rms_norm_triton

    return rms_norm_triton
