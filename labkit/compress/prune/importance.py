"""How much each head and neuron matters: from gradients, from the size of its weights, or at random.

Taking a unit out sets its gate from 1 to 0. To first order the loss changes by the gradient at the gate, which is
Σ activation · gradient over the unit's outputs: one backward pass tells it for all units at once (Molchanov et al.
2017, "Pruning Convolutional Neural Networks for Resource Efficient Inference", and 2019, "Importance Estimation for
Neural Network Pruning"; for attention heads Michel et al. 2019, "Are Sixteen Heads Really Better than One?"). Its
size is taken for each sequence and averaged: what helps on one text and harms on another matters on both.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from labkit.compress.prune.gates import gated
from labkit.compress.prune.rows import sequence_loss, sequences_of
from labkit.compress.prune.units import Units, units
from labkit.errors import LabkitError
from labkit.models import LM


@dataclass(frozen=True)
class Importance:
    """Scores on the CPU, fp32; only their order within a layer means something across kinds.

    Args:
        heads: [layers, query heads].
        groups: [layers, KV heads], each with all query heads that read it.
        neurons: [layers, neurons].
        kind: "taylor", "magnitude" or "random".
    """

    heads: Tensor
    groups: Tensor
    neurons: Tensor
    kind: str


def importance(
    lm: LM,
    tokens: Tensor,
    kind: str = "taylor",
    *,
    seed: int = 0,
    length: int = 256,
    batch: int = 4,
    sequences: int | None = None,
) -> Importance:
    """Score every head and neuron. The model is afterwards exactly as before.

    Args:
        tokens: LongTensor [n] of text like that which the model will serve; never the evaluation text.
        kind: "taylor": |Σ activation · gradient| of the loss; "magnitude": the norm of the unit's weights;
            "random": the control. The last two do not look at the tokens.
        seed: of the random scores.
        length, batch: tokens of a sequence, and sequences of one backward pass.
        sequences: how many to use; None means all that the tokens make.

    Raises:
        LabkitError: an unknown kind, too few tokens, a loss that is not finite, or a model without such units.
    """
    found = units(lm)
    if kind == "taylor":
        return _taylor(lm, found, sequences_of(lm, tokens, length, sequences), batch)
    if kind == "magnitude":
        return _magnitude(lm, found)
    if kind == "random":
        generator = torch.Generator().manual_seed(seed)
        sizes = (found.heads, found.kv_heads, found.neurons)
        drawn = [torch.rand(len(found.layers), size, generator=generator) for size in sizes]
        return Importance(drawn[0], drawn[1], drawn[2], kind)
    raise LabkitError(f"There is no importance {kind!r}.", 'Use "taylor", "magnitude" or "random".')


def _taylor(lm: LM, found: Units, rows: Tensor, batch: int) -> Importance:
    layers, group = len(found.layers), found.group
    heads = torch.zeros(layers, found.heads, dtype=torch.float64)
    groups = torch.zeros(layers, found.kv_heads, dtype=torch.float64)
    neurons = torch.zeros(layers, found.neurons, dtype=torch.float64)
    flags = [(weight, weight.requires_grad) for weight in lm.model.parameters()]
    training = lm.model.training
    try:
        lm.model.eval()
        for weight, _ in flags:
            weight.requires_grad_(False)
        for part in rows.split(batch):
            by_head, by_neuron = _gate_gradients(lm, found, part.to(lm.device))
            heads += by_head.abs().sum(1)
            # a group goes as a whole, so its heads' effects add up before the size is taken
            groups += by_head.unflatten(-1, (-1, group)).sum(-1).abs().sum(1)
            neurons += by_neuron.abs().sum(1)
    finally:
        for weight, flag in flags:
            weight.requires_grad_(flag)
        lm.model.train(training)
    scores = [(each / len(rows)).float() for each in (heads, groups, neurons)]
    return Importance(scores[0], scores[1], scores[2], "taylor")


def _gate_gradients(lm: LM, found: Units, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient of each sequence's mean loss at its gates: [layers, sequences, units], for heads and neurons."""
    layers = len(found.layers)

    def ones(size: int) -> list[Tensor]:
        shape = (len(ids), 1, size)
        dtype = torch.promote_types(lm.dtype, torch.float32)  # sums over tokens would round in bf16
        return [torch.ones(shape, device=ids.device, dtype=dtype, requires_grad=True) for _ in range(layers)]

    heads, neurons = ones(found.heads), ones(found.neurons)
    with torch.enable_grad(), gated(lm.model, found, heads, neurons):
        loss = sequence_loss(lm, ids).sum()
        if not loss.isfinite():
            raise LabkitError(f"The loss of {lm.name} is not finite.", "Check the model and its precision.")
        slopes = torch.autograd.grad(loss, [*heads, *neurons])
    rows = [slope[:, 0].double().cpu() for slope in slopes]
    return torch.stack(rows[:layers]), torch.stack(rows[layers:])


@torch.no_grad()
def _magnitude(lm: LM, found: Units) -> Importance:
    """The norm of all weights that would go with a unit (keys and values count for the group only)."""
    squares: dict[str, list[Tensor]] = {"queries": [], "keys": [], "neurons": []}

    def per_unit(kind: str, of_weight: Tensor) -> Tensor:
        width = 1 if kind == "neurons" else found.head_dim
        return of_weight.unflatten(0, (-1, width)).sum(-1).cpu()

    for layer in found.layers:
        sums: dict[str, Tensor | float] = {"queries": 0.0, "keys": 0.0, "neurons": 0.0}
        for block in layer.rows:
            weight = _weight(lm, block.linear)[block.start : block.start + found.width(block.kind)]
            sums[block.kind] = sums[block.kind] + per_unit(block.kind, weight.double().square().sum(1))
        for name, kind in ((layer.out, "queries"), (layer.down, "neurons")):
            sums[kind] = sums[kind] + per_unit(kind, _weight(lm, name).double().square().sum(0))
        for kind, value in sums.items():
            squares[kind].append(torch.as_tensor(value))
    heads, keys, neurons = (torch.stack(squares[kind]) for kind in ("queries", "keys", "neurons"))
    groups = heads.unflatten(-1, (-1, found.group)).sum(-1) + keys
    norms = [total.sqrt().float() for total in (heads, groups, neurons)]
    return Importance(norms[0], norms[1], norms[2], "magnitude")


def _weight(lm: LM, name: str) -> Tensor:
    weight: Tensor = lm.model.get_submodule(name).weight  # type: ignore[assignment]
    return weight
