"""Gates: a factor on the output of every head and neuron, by hooks that come off again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from labkit.compress.prune.units import Units


@contextmanager
def gated(
    model: nn.Module, found: Units, heads: Sequence[Tensor], neurons: Sequence[Tensor]
) -> Iterator[None]:
    """While inside, what each head and neuron hands on is multiplied by its gate.

    A gate of 0 is a unit taken out; the gradient at a gate of 1 is Σ activation · gradient of that unit.

    Args:
        heads: per layer a tensor [query heads], or [sequences, 1, query heads] for gates of each sequence.
        neurons: per layer a tensor [neurons], or [sequences, 1, neurons].
    """
    hooks: list[Any] = []
    try:
        for layer, by_head, by_neuron in zip(found.layers, heads, neurons, strict=True):
            out, down = model.get_submodule(layer.out), model.get_submodule(layer.down)
            hooks.append(out.register_forward_pre_hook(_Multiply(by_head, found.head_dim)))
            hooks.append(down.register_forward_pre_hook(_Multiply(by_neuron, 1)))
        yield
    finally:
        for hook in hooks:
            hook.remove()


class _Multiply:
    """Multiplies a linear layer's input [sequences, tokens, units · width] by the gates of its units."""

    def __init__(self, gate: Tensor, width: int) -> None:
        self.gate, self.width = gate, width

    def __call__(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        wide = self.gate.repeat_interleave(self.width, -1) if self.width > 1 else self.gate
        return ((inputs[0] * wide).to(inputs[0].dtype), *inputs[1:])


def masks(
    found: Units, heads: Tensor, neurons: Tensor, device: torch.device
) -> tuple[list[Tensor], list[Tensor]]:
    """Gates of 1 for the units that stay and of 0 for all others, per layer.

    Args:
        heads, neurons: LongTensor [layers, kept].
    """
    return (
        [torch.zeros(found.heads, device=device).index_fill_(0, row.to(device), 1.0) for row in heads],
        [torch.zeros(found.neurons, device=device).index_fill_(0, row.to(device), 1.0) for row in neurons],
    )
