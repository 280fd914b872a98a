"""Several linear layers of one input as one: their weights become rows of one matrix.

    [q]
    [k] · x   is one product that reads x once, and one kernel launch, where there were three
    [v]

The merged weight owns the memory, and the layers' own Parameters (buffers, where weights are packed) stay what and
where they are but become views of its rows: nothing is stored twice, state_dict and optimisers see what they saw, and
what they write is in the merged weight too. `release` gives each memory of its own again, with the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from labkit.kernels.packed import Packed, mismatch
from labkit.models.linear import QuantizedLinear

Linear = nn.Linear | QuantizedLinear


class Merged:
    """The weights, and biases if there are, of linear layers one above the other.

    Args:
        linears: for which `refusal` has no objection.

    Attributes:
        weight: a tensor, or packed as the layers' own were.
    """

    def __init__(self, linears: Sequence[Linear]) -> None:
        self._owned: list[tuple[Tensor, int]] = []
        self.weight: Tensor | Packed
        biases = [linear.bias for linear in linears if linear.bias is not None]
        try:
            if isinstance(linears[0], QuantizedLinear):
                self.weight = self._adopt_packed([cast(QuantizedLinear, each) for each in linears])
            else:
                self.weight = self._adopt([cast(Tensor, each.weight) for each in linears])
            self.bias = self._adopt(biases) if biases else None
        except BaseException:
            self.release()
            raise

    def _adopt_packed(self, linears: list[QuantizedLinear]) -> Packed:
        """The values, scales and zero points of all, each as one tensor."""
        first = linears[0].packed
        tensors = [
            self._adopt([cast(Tensor, getattr(each, name)) for each in linears])
            for name in ("values", "scales", "zeros")
            if getattr(linears[0], name) is not None
        ]
        values, scales, *zeros = tensors
        return Packed(
            values.view(first.values.dtype), scales, zeros[0] if zeros else None, first.format, first.columns
        )

    def _adopt(self, parameters: Sequence[Tensor]) -> Tensor:
        first, start = parameters[0], 0
        with _born_like(first), torch.no_grad():  # in this order: the first may switch gradients on
            merged = torch.empty(
                sum(map(len, parameters)), *first.shape[1:], dtype=first.dtype, device=first.device
            )
            for parameter in parameters:
                rows = merged[start : start + len(parameter)]
                rows.copy_(parameter)
                parameter.data = rows
                self._owned.append((parameter, rows.data_ptr()))
                start += len(parameter)
        return merged

    @property
    def intact(self) -> bool:
        """Whether the Parameters and buffers are still views; moving a model to another device or dtype ends that."""
        return all(parameter.data_ptr() == address for parameter, address in self._owned)

    def release(self) -> None:
        """Give the Parameters that are still views memory of their own."""
        for parameter, address in self._owned:
            if parameter.data_ptr() == address:
                with _born_like(parameter), torch.no_grad():
                    parameter.data = parameter.data.clone()
        self._owned.clear()


def _born_like(parameter: Tensor) -> torch.inference_mode:
    """Data for a Parameter must be made in the mode that it was made in: with an ordinary one's made in inference mode
    nobody could train it later, and an inference tensor with ordinary data can no longer be used at all."""
    return torch.inference_mode(parameter.is_inference())


class Owners:
    """Which memory of a model belongs to one Parameter alone."""

    def __init__(self, model: nn.Module) -> None:
        self._uses: dict[int, int] = {}
        for _, module in model.named_modules(remove_duplicate=False):
            for tensor in _tensors(module):
                address = tensor.untyped_storage().data_ptr()
                self._uses[address] = self._uses.get(address, 0) + 1

    def refusal(self, linears: Sequence[Linear]) -> str | None:
        """Why linear layers cannot become one, or None."""
        parameters = [each for linear in linears for each in _tensors(linear)]
        packed = [linear for linear in linears if isinstance(linear, QuantizedLinear)]
        plain = [linear for linear in linears if isinstance(linear, nn.Linear)]
        if packed and plain:
            return "only some of its projections are quantised"
        if packed and (reason := mismatch([linear.packed for linear in packed])):
            return f"its projections are quantised, and {reason}"
        if len({linear.activations for linear in packed}) > 1:
            return "only some of its projections quantise their input"
        if len({(linear.in_features, linear.weight.dtype, linear.weight.device) for linear in plain}) > 1:
            return "its projections differ in input, dtype or device"
        if len({linear.bias is None for linear in linears}) > 1:
            return "only some of its projections have a bias"
        if any(self._uses[each.untyped_storage().data_ptr()] > 1 for each in parameters):
            return "other parameters share the memory of its weights"
        return None


def _tensors(module: nn.Module) -> list[Tensor]:
    """What a module itself stores: its Parameters, and the buffers of a quantised layer."""
    own: list[Tensor] = [each for each in module._parameters.values() if each is not None]
    if isinstance(module, QuantizedLinear):
        own += [each for each in module._buffers.values() if each is not None]
    return own
