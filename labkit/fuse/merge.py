"""Several linear layers of one input as one: their weights become rows of one matrix.

    [q]
    [k] · x   is one product that reads x once, and one kernel launch, where there were three
    [v]

The merged weight owns the memory, and the layers' own Parameters stay what and where they are but become views of
its rows: nothing is stored twice, state_dict and optimisers see what they saw, and what they write is in the merged
weight too. `release` gives each Parameter memory of its own again, with the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn


class Merged:
    """The weights, and biases if there are, of linear layers one above the other.

    Args:
        linears: for which `refusal` has no objection.
    """

    def __init__(self, linears: Sequence[nn.Linear]) -> None:
        self._owned: list[tuple[nn.Parameter, int]] = []
        biases = [linear.bias for linear in linears if linear.bias is not None]
        try:
            self.weight = self._adopt([cast(nn.Parameter, linear.weight) for linear in linears])
            self.bias = self._adopt(biases) if biases else None
        except BaseException:
            self.release()
            raise

    def _adopt(self, parameters: list[nn.Parameter]) -> Tensor:
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
        """Whether the Parameters are still views; moving a model to another device or dtype ends that."""
        return all(parameter.data_ptr() == address for parameter, address in self._owned)

    def release(self) -> None:
        """Give the Parameters that are still views memory of their own."""
        for parameter, address in self._owned:
            if parameter.data_ptr() == address:
                with _born_like(parameter), torch.no_grad():
                    parameter.data = parameter.data.clone()
        self._owned.clear()


def _born_like(parameter: nn.Parameter) -> torch.inference_mode:
    """Data for a Parameter must be made in the mode that it was made in: with an ordinary one's made in inference mode
    nobody could train it later, and an inference tensor with ordinary data can no longer be used at all."""
    return torch.inference_mode(parameter.is_inference())


class Owners:
    """Which memory of a model belongs to one Parameter alone."""

    def __init__(self, model: nn.Module) -> None:
        self._uses: dict[int, int] = {}
        for _, parameter in model.named_parameters(remove_duplicate=False):
            address = parameter.untyped_storage().data_ptr()
            self._uses[address] = self._uses.get(address, 0) + 1

    def refusal(self, linears: Sequence[nn.Linear]) -> str | None:
        """Why plain linear layers cannot become one, or None."""
        parameters = [each for linear in linears for each in linear.parameters()]
        if len({(linear.in_features, linear.weight.dtype, linear.weight.device) for linear in linears}) > 1:
            return "its projections differ in input, dtype or device"
        if len({linear.bias is None for linear in linears}) > 1:
            return "only some of its projections have a bias"
        if any(self._uses[each.untyped_storage().data_ptr()] > 1 for each in parameters):
            return "other parameters share the memory of its weights"
        return None
