"""A linear layer on a packed weight: the one protocol by which all other rooms see quantised layers.

A layer holds a `Packed` matrix (labkit.kernels.packed) as buffers, so that it moves, saves and loads with its model.
Whoever wants the weight asks for `packed`: rows of it, several of them one above the other (`packed.cat`), or the
product (`multiply`). The weight has no gradient; its input may have one.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from labkit.errors import LabkitError
from labkit.kernels.formats import FP8, Format
from labkit.kernels.packed import ALIGNED, Packed
from labkit.kernels.packed_linear import packed_linear, reference
from labkit.kernels.rms_norm import Norm
from labkit.kernels.w8a8 import refusal, w8a8_linear


def multiply(
    x: Tensor,
    weight: Packed,
    bias: Tensor | None = None,
    *,
    activations: str | None = None,
    add: Tensor | None = None,
    counters: Tensor | None = None,
    pdl: bool = False,
    norm: Norm | None = None,
    gate: str | None = None,
) -> Tensor:
    """x · ŵᵀ + bias + add, x [T, K] to [T, N].

    Args:
        activations: "int8": x is quantised too, a row at a time; without norm and gate.
        others: as for labkit.kernels.packed_linear.packed_linear.
    """
    if torch.is_grad_enabled() and x.requires_grad:
        return reference(x, weight, bias, add=add, norm=norm, gate=gate)
    if activations == "int8":
        return w8a8_linear(x, weight, bias, add=add)
    return packed_linear(x, weight, bias, add=add, counters=counters, pdl=pdl, norm=norm, gate=gate)


class QuantizedLinear(nn.Module):
    """What takes the place of an nn.Linear.

    Args:
        packed: the weight [out_features, in_features].
        bias: [out_features], or None.
        activations: None, or "int8" for int8 products.
        input_scale: [in_features]; the input is multiplied by it first, where whoever scaled the weight's columns found
            nothing in the model that could do it.

    Raises:
        LabkitError: activations that are unknown, or do not go with the weight.
    """

    def __init__(
        self,
        packed: Packed,
        bias: Tensor | None = None,
        *,
        activations: str | None = None,
        input_scale: Tensor | None = None,
    ) -> None:
        super().__init__()
        reason = refusal(packed) if activations == "int8" else None
        if activations not in (None, "int8") or reason:
            raise LabkitError(
                f"Activations in {activations} do not go with this weight{f': {reason}' if reason else ''}.",
                'Give None, or "int8" with a symmetric int8 weight that has a scale for each row.',
            )
        self.out_features, self.in_features = packed.shape
        self.format, self.activations = packed.format, activations
        self.values: Tensor
        self.scales: Tensor
        self.zeros: Tensor | None
        self.input_scale: Tensor | None
        self.bias: nn.Parameter | None
        # a module's dtype is changed for all that is floating point, and fp8 is: keep its bits
        values = packed.values.view(torch.uint8) if packed.format.kind == "fp8" else packed.values
        for name, tensor in {
            "values": values,
            "scales": packed.scales,
            "zeros": packed.zeros,
            "input_scale": input_scale,
        }.items():
            self.register_buffer(name, tensor)
        frozen = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)
        self.register_parameter("bias", frozen)

    @classmethod
    def empty(
        cls,
        in_features: int,
        out_features: int,
        made: Format,
        *,
        dtype: torch.dtype,
        bias: bool = False,
        activations: str | None = None,
        scaled: bool = False,
    ) -> QuantizedLinear:
        """One without numbers, whose buffers have their shapes, for a checkpoint to fill."""
        width = -(-in_features // ALIGNED) * ALIGNED
        kinds = {"int8": torch.int8, "fp8": FP8, "int4": torch.uint8}
        if made.kind == "int4":
            width = -(-in_features // made.block) * made.block // 2
        grains = (1, 1) if made.tensor else (out_features, made.groups(in_features))
        zeros = (
            None
            if made.symmetric
            else torch.empty(grains, dtype=kinds["int8" if made.kind == "int8" else "int4"])
        )
        values = torch.empty(out_features, width, dtype=kinds[made.kind])
        packed = Packed(values, torch.empty(grains, dtype=dtype), zeros, made, in_features)
        return cls(
            packed, torch.empty(out_features, dtype=dtype) if bias else None, activations=activations,
            input_scale=torch.empty(in_features, dtype=dtype) if scaled else None,
        )  # fmt: skip

    @property
    def packed(self) -> Packed:
        """The weight, on the layer's own memory."""
        values = self.values.view(FP8) if self.format.kind == "fp8" else self.values
        return Packed(values, self.scales, self.zeros, self.format, self.in_features)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in_features] to [..., out_features]."""
        flat = x.reshape(-1, self.in_features)
        if self.input_scale is not None:
            flat = flat * self.input_scale
        out = multiply(flat, self.packed, self.bias, activations=self.activations)
        return out.view(*x.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        """What print(model) shows of it."""
        also = f", activations in {self.activations}" if self.activations else ""
        return f"{self.in_features} → {self.out_features}, {self.format}{also}"
