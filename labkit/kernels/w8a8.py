"""Linear layers of int8 times int8: activations are quantised too, a row at a time, while the model runs.

    x ≈ s_x · q_x,  W ≈ s_w · q_w   →   x · Wᵀ ≈ s_x · s_w · (q_x · q_wᵀ)

The inner product is one of whole numbers: exact, in any order, and the tensor cores do it twice as fast as in 16
bits. Scales belong to rows on both sides, since only what is constant along the sum can be taken out of it: groups
of columns cannot. A row's scale is its own largest number, so no token changes its neighbours' answers.

Sources: Dettmers et al. 2022, "LLM.int8()" (scales for rows of both); Xiao et al. 2022, "SmoothQuant".
"""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from labkit.errors import LabkitError
from labkit.kernels.device import FLOATS, available, power
from labkit.kernels.packed import Packed

BLOCK = 64
"""Tokens that a program takes at a time."""

MOST = 64
"""The most tokens that go to the kernel on a GPU; more go to torch's product, whose tiles are larger."""

EXACT = 1024
"""Columns whose products of int8, 2¹⁴ each at most, add up to 2²⁴ at most: a float32 holds such a sum exactly."""


def scaled_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Symmetric int8 for each row: (numbers int8 [T, K], scales float32 [T, 1]), x ≈ numbers · scales.

    A row of zeros has scale 1. A row with a NaN or an infinity has scale NaN, so that its results are NaN.
    """
    if x.is_cuda and x.dtype in FLOATS and available(x.device):
        return launch_rows(x)
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    top = wide.abs().amax(1, keepdim=True)
    scale = torch.where(top == 0, 1.0, top / 127)
    numbers = (wide / scale).round().clamp(-127, 127).nan_to_num(0.0).to(torch.int8)
    return numbers, torch.where(top.isfinite(), scale, torch.nan).float()


def w8a8_linear(
    x: Tensor,
    weight: Packed,
    bias: Tensor | None = None,
    *,
    add: Tensor | None = None,
    activation: str | None = None,
    counters: Tensor | None = None,
    pdl: bool = False,
) -> Tensor:
    """activation(x · ŵᵀ + bias) + add with x in int8 too: [T, N] in the dtype of x.

    Args:
        x: [T, K], floats.
        weight: int8, symmetric, a scale for each row or one in all.
        others: as for labkit.kernels.linear.linear; pdl has no effect here.

    Raises:
        LabkitError: `refusal` has something against the weight, or shapes do not fit.
    """
    if reason := refusal(weight):
        raise LabkitError(
            f"This weight cannot be multiplied in int8: {reason}.", "Quantise it to int8, row by row."
        )
    n, k = weight.shape
    if x.ndim != 2 or x.shape[1] != k or (add is not None and add.shape != (len(x), n)):
        raise LabkitError(
            f"x {list(x.shape)} or its residual does not fit a packed weight [{n}, {k}].",
            f"Give floats [tokens, {k}], and a residual [tokens, {n}].",
        )
    numbers, scales = scaled_rows(x)
    if 0 < len(x) <= MOST and x.dtype in FLOATS and available(x.device):
        return launch(numbers, scales, weight, bias, x.dtype, add=add, activation=activation)
    sums = product(numbers, weight.values)
    exact = torch.promote_types(x.dtype, torch.float32)
    out = sums.to(exact) * scales.to(exact) * weight.scales[:, 0].to(exact)
    return _finish(out, bias, add, activation).to(x.dtype)


def refusal(weight: Packed) -> str | None:
    """Why a weight cannot be multiplied with int8 activations, or None."""
    made = weight.format
    if made.kind != "int8":
        return f"it is {made}"
    if made.group is not None:
        return f"each group of {made.group} columns has its own scale, which cannot be taken out of the sum"
    return None if made.symmetric else "it has zero points"


def product(numbers: Tensor, values: Tensor) -> Tensor:
    """int32 [T, N]: exact sums of int8 products, by torch.

    Its GPU product wants more than 16 rows and whole multiples of 8: what is missing is filled up with zeros. Its CPU
    product is slow for several tokens on processors without int8 units: there floats do it, some columns at a time.
    """
    tokens, (n, width) = len(numbers), values.shape
    numbers = torch.nn.functional.pad(
        numbers, (0, width - numbers.shape[1])
    )  # rows of a packed weight are padded
    if numbers.is_cuda:
        numbers = torch.nn.functional.pad(numbers, (0, 0, 0, max(0, 17 - tokens)))
        values = torch.nn.functional.pad(values, (0, 0, 0, -n % 8))
    elif tokens > 1:
        pairs = zip(numbers.split(EXACT, 1), values.split(EXACT, 1), strict=True)
        return sum((a.float() @ b.float().T).int() for a, b in pairs)
    return torch._int_mm(numbers, values.t())[:tokens, :n]


def launch_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """`scaled_rows` by its kernel."""
    x = x if x.stride(1) == 1 else x.contiguous()
    numbers = torch.empty(x.shape, dtype=torch.int8, device=x.device)
    scales = torch.empty(len(x), 1, dtype=torch.float32, device=x.device)
    if len(x):
        _kernels().rows_kernel[(len(x),)](
            x, numbers, scales, x.shape[1], x.stride(0), BLOCK=power(x.shape[1]), num_warps=8
        )
    return numbers, scales


def launch(
    numbers: Tensor,
    scales: Tensor,
    weight: Packed,
    bias: Tensor | None,
    dtype: torch.dtype,
    *,
    add: Tensor | None = None,
    activation: str | None = None,
) -> Tensor:
    """The product's kernel, for any number of tokens.

    Args:
        numbers, scales: of `scaled_rows`.
        dtype: of the result.
    """
    (tokens, k), n = numbers.shape, weight.shape[0]
    out = torch.empty(tokens, n, dtype=dtype, device=numbers.device)
    count = min(BLOCK, max(16, power(tokens)))
    rows, tile = (32, 256) if tokens <= 16 else (64, 128)
    _kernels().product_kernel[(-(-n // rows), -(-tokens // count))](
        numbers, scales, weight.values, weight.scales, bias, add if add is None else add.contiguous(), out, n, k,
        weight.values.stride(0), weight.scales.stride(0) if len(weight.scales) > 1 else 0, tokens, ROWS=rows,
        TOKENS=count, TILE=min(tile, max(32, power(k))), ACTIVATION=activation, num_warps=4, num_stages=4,
    )  # fmt: skip
    return out


def _finish(out: Tensor, bias: Tensor | None, add: Tensor | None, activation: str | None) -> Tensor:
    if bias is not None:
        out = out + bias
    if activation is not None:
        out = torch.nn.functional.gelu(out, approximate="tanh" if activation == "gelu_tanh" else "none")
    return out if add is None else out + add


def _kernels() -> ModuleType:
    """Imported on first use: Triton does not exist everywhere, and its interpreter must be chosen before."""
    from labkit.kernels import w8a8_triton

    return w8a8_triton
