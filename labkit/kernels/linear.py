"""Linear layers of a few tokens: as fast as the weight can be read, with bias, GELU and residual in one launch.

A step that decodes a few rows reads every weight once and does little with it: T tokens cost 2·T operations a
weight, and a GPU could do hundreds in the time one weight takes to arrive. So speed is bandwidth, and bandwidth
is enough programs with enough loads under way. A program takes some rows of the weight [N, K] and walks along K.

- One token: multiplied and added on ordinary cores, a float32 sum for every place of the tile, reduced once.
- 2 … SMALL tokens: tensor cores, the tokens padded to one narrow operand. A token's result has the same bits
  in any company of that size, since neither tiles nor order depend on how many there are.
- Where N alone gives too few programs, or a number of them that leaves processors idle at the end, K is split
  too. The shares are float32 and are always added from first to last. Who adds them: with `counters`, the
  program that comes last, in the same launch; without, a second small kernel. Both give the same bits.
- The epilogue works on the float32 sum and rounds once; torch rounds after each of its steps.

SMALL is 16: the tensor cores' smallest operand and Triton's smallest tile, so 2 tokens and 16 read the same
bytes and take about the same time. Beyond, every program reads as many numbers of x as of its weight rows, what
is not weight begins to count, and a library's large tiles serve better.

The kernels are in linear_triton.py, their tiles and how to tune them in linear_tiling.py.

Sources: Osama et al. 2023, "Stream-K" (work that fills the last wave); Hendrycks & Gimpel 2016 (GELU).
"""

from __future__ import annotations

from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor

from labkit.errors import LabkitError
from labkit.kernels.device import FLOATS, available, dependent, starts_early
from labkit.kernels.linear_tiling import Tiling, padded, tiling_for

SMALL = 16
"""The most tokens that go to the kernels; more go to torch."""

ACTIVATIONS = (None, "gelu", "gelu_tanh")
COMBINED = 512  # outputs of a program of the second launch


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    add: Tensor | None = None,
    activation: str | None = None,
    splits: int | None = None,
    counters: Tensor | None = None,
    pdl: bool = False,
) -> Tensor:
    """activation(x · weightᵀ + bias) + add: by the kernels for up to SMALL tokens on a GPU, else by torch.

    The kernels know no gradients: where one is wanted, torch does the work.

    Args:
        x: [T, K].
        weight: [N, K], perhaps some rows of a larger one.
        bias: [N].
        add: [T, N], the residual.
        activation: None, "gelu" or "gelu_tanh".
        splits: into how many shares K is cut; tuned or chosen from sizes if not given.
        counters: see `arrival_counters`; saves the second launch of a split product.
        pdl: programmatic dependent launch: the kernel may start while the one before it ends, and waits for it
            before it reads x. Only if nothing just before it writes `weight`. No effect before Hopper.

    Returns:
        [T, N] in the dtype of x.

    Raises:
        LabkitError: shapes or dtypes that do not fit, an unknown activation, too few counters.
    """
    _check(x, weight, bias, add, activation)
    if not _fits(x, weight):
        return reference(x, weight, bias, add=add, activation=activation)
    return launch(x, weight, bias, add=add, activation=activation, splits=splits, counters=counters, pdl=pdl)


def reference(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    add: Tensor | None = None,
    activation: str | None = None,
) -> Tensor:
    """`linear` in torch, for any number of tokens, dtype and device."""
    out = F.linear(x, weight, bias)
    if activation is not None:
        out = F.gelu(out, approximate="tanh" if activation == "gelu_tanh" else "none")
    return out if add is None else out + add


def arrival_counters(features: int, device: torch.device | str) -> Tensor:
    """Counters that let a split product end in one launch, for weights of up to `features` rows.

    int32 zeros, which every launch leaves as zeros. Layers that run one after the other share them; streams
    that run at the same time must not, nor graphs that are replayed at the same time.
    """
    return torch.zeros(features, dtype=torch.int32, device=device)


def scratch_numbers(tokens: int, features: int, splits: int) -> int:
    """float32 numbers of scratch that `launch` needs."""
    return splits * tokens * features if splits > 1 else 0


def launch(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    add: Tensor | None = None,
    activation: str | None = None,
    splits: int | None = None,
    counters: Tensor | None = None,
    pdl: bool = False,
    tiling: Tiling | None = None,
    scratch: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """The kernels, with the contract of `linear`; any number of tokens for which tiles fit, from 1 on.

    Args:
        tiling: how the work is cut; tuned or chosen from sizes if not given.
        scratch: float32 [scratch_numbers(…)], which the layers of a captured graph may share.
        out: contiguous [T, N].

    Raises:
        LabkitError: scratch or counters are too small, out does not fit, or splits < 1.
    """
    (tokens, k), n = x.shape, weight.shape[0]
    tiling = tiling or tiling_for(x.device, x.dtype, n, k, padded(tokens))
    if splits is not None and splits < 1:
        raise LabkitError(f"K cannot be cut into {splits} shares.", "Give splits ≥ 1, or None.")
    splits = tiling.filled(k, splits)
    if out is None:
        out = torch.empty(tokens, n, dtype=x.dtype, device=x.device)
    elif out.shape != (tokens, n) or out.dtype != x.dtype or not out.is_contiguous():
        raise LabkitError(
            f"The output {list(out.shape)} {out.dtype} cannot take [{tokens}, {n}] {x.dtype}.",
            "Give a contiguous tensor of that shape and dtype.",
        )
    if splits > 1:
        scratch = _scratch(scratch, scratch_numbers(tokens, n, splits), x.device)
        _check_counters(counters, -(-n // tiling.rows), n)
    x = x if x.stride(1) == 1 else x.contiguous()
    bias = bias if bias is None else bias.contiguous()
    add = add if add is None else add.contiguous()
    _multiply(x, weight, bias, add, out, scratch, counters, activation, splits, tiling, pdl)
    return out


def _scratch(scratch: Tensor | None, needed: int, device: torch.device) -> Tensor:
    if scratch is None:
        return torch.empty(needed, dtype=torch.float32, device=device)
    if scratch.numel() < needed or scratch.dtype != torch.float32:
        raise LabkitError(
            f"Scratch of {scratch.numel()} numbers ({scratch.dtype}) was given, {needed} of float32 are needed.",
            "Enlarge it.",
        )
    return scratch


def _check_counters(counters: Tensor | None, blocks: int, features: int) -> None:
    if counters is not None and (counters.numel() < blocks or counters.dtype != torch.int32):
        raise LabkitError(
            f"{counters.numel()} counters ({counters.dtype}) were given, {blocks} of int32 are needed.",
            f"Make them with arrival_counters({features}, …).",
        )


def _multiply(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    add: Tensor | None,
    out: Tensor,
    scratch: Tensor | None,
    counters: Tensor | None,
    activation: str | None,
    splits: int,
    tiling: Tiling,
    pdl: bool,
) -> None:
    """One launch, or two where K is split and nothing counts who comes last."""
    kernels = _kernels()
    (tokens, k), n = x.shape, weight.shape[0]
    # tensor cores gain nothing by starting early (measured on an H200), as they keep no weights at hand
    split, pdl = splits > 1, pdl and tokens == 1 and not kernels.INTERPRETED and starts_early(x.device)
    early = {"PDL": pdl, **dependent(pdl)}
    cut = {"ACTIVATION": activation, "ROWS": tiling.rows, "TILE": tiling.tile, "EVEN": k % tiling.tile == 0,
           "SPLIT": split, "COUNTED": split and counters is not None, "STAGES": tiling.stages,
           "num_warps": tiling.warps, "num_stages": tiling.stages}  # fmt: skip
    grid = (-(-n // tiling.rows), splits)
    places = (x, weight, bias, add, out, scratch if split else None, counters if split else None)
    if tokens == 1:
        kernels.vector_kernel[grid](*places, n, k, weight.stride(0), splits, **cut, **early)
    else:
        wide = kernels.INTERPRETED or x.dtype == torch.float32  # the interpreter multiplies the bits of bf16
        kernels.tile_kernel[grid](*places, n, k, weight.stride(0), splits, tokens, x.stride(0),
                                  TOKENS=padded(tokens), WIDE=wide, **cut)  # fmt: skip
    if split and scratch is not None and counters is None:
        combine(scratch, bias, add, out, splits, activation, pdl)


def combine(
    shares: Tensor,
    bias: Tensor | None,
    add: Tensor | None,
    out: Tensor,
    splits: int,
    activation: str | None,
    pdl: bool,
) -> None:
    """The second launch of a split product whose programs are not counted: out = epilogue(Σ shares).

    Args:
        shares: float32 [splits · T · N].
        out: [T, N].
    """
    numbers = out.numel()
    _kernels().combine_kernel[(-(-numbers // COMBINED),)](
        shares, bias, add, out, out.shape[1], numbers, splits, BLOCK=COMBINED, ACTIVATION=activation, num_warps=4,
        PDL=pdl, **dependent(pdl),
    )  # fmt: skip


def _fits(x: Tensor, weight: Tensor) -> bool:
    """Whether the kernels take this product."""
    if not 0 < len(x) <= SMALL or x.dtype not in FLOATS or 0 in weight.shape or weight.stride(1) != 1:
        return False
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        return False
    return available(x.device)


def _check(
    x: Tensor, weight: Tensor, bias: Tensor | None, add: Tensor | None, activation: str | None
) -> None:
    if x.ndim != 2 or weight.ndim != 2 or x.shape[1] != weight.shape[1] or x.dtype != weight.dtype:
        raise LabkitError(
            f"x {list(x.shape)} {x.dtype} and weight {list(weight.shape)} {weight.dtype} do not multiply.",
            "Give x [tokens, K] and weight [N, K] of one dtype.",
        )
    n = weight.shape[0]
    if bias is not None and bias.shape != (n,):
        raise LabkitError(f"A bias {list(bias.shape)} does not fit {n} outputs.", f"Give [{n}].")
    if add is not None and add.shape != (len(x), n):
        raise LabkitError(
            f"A residual {list(add.shape)} does not fit the output [{len(x)}, {n}].",
            "Give one number for each output: nothing is broadcast.",
        )
    if activation not in ACTIVATIONS:
        raise LabkitError(f"No activation {activation!r} here.", 'Choose None, "gelu" or "gelu_tanh".')


def _kernels() -> ModuleType:
    """Imported on first use: Triton does not exist everywhere, and its interpreter must be chosen before."""
    from labkit.kernels import linear_triton

    return linear_triton
