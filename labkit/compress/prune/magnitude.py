"""Unstructured pruning: the smallest weights set to zero, wherever they are (Han et al. 2015).

Quality falls little at first. Speed does not rise at all: a dense kernel reads and multiplies zeros like any other
number, and the matrices are as large as before. Only a format that leaves zeros out is smaller, and only from a
certain share on, since it has to say where the other weights stand.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from labkit.compress.prune.units import check_plain
from labkit.errors import LabkitError
from labkit.models import LM

INDEX = 4
"""Bytes of a column number in CSR (int32)."""


@dataclass(frozen=True)
class Sparsity:
    """What is zero in the pruned matrices, and the bytes they would take.

    Args:
        share: of their weights that are zero, 0 to 1, counted.
        by_matrix: the same for each module.
        dense: bytes as they are, zeros stored.
        csr: bytes as compressed sparse rows: for every other weight its value and an int32 column, and for
            every row an int32 offset.
        bitmask: bytes as one bit a weight, and the values of those that are not zero.
    """

    share: float
    by_matrix: dict[str, float]
    dense: int
    csr: int
    bitmask: int


@torch.no_grad()
def magnitude(lm: LM, share: float, *, in_place: bool = False) -> tuple[LM, Sparsity]:
    """Set a share of the smallest weights of every matrix in the decoder's layers to zero.

    Args:
        share: of each matrix, 0 to 1; of equal weights the first go, so that the share is exact.
        in_place: change `lm` itself; else a copy is made.

    Returns:
        The pruned LM and what was achieved.

    Raises:
        LabkitError: a share outside 0 to 1, or fused kernels or an engine on the model.
    """
    if not 0 <= share <= 1:
        raise LabkitError(f"A share of {share} cannot be zero.", "Give a share from 0 to 1.")
    check_plain(lm)
    model = lm.model if in_place else copy.deepcopy(lm.model)
    changed = LM(model, lm.tokenizer, f"{lm.name} ({share:.0%} zeros)", lm.device, lm.dtype)
    for module in _matrices(changed).values():
        weight: Any = module.weight
        weight.masked_fill_(smallest(weight, share), 0)
    return changed, sparsity(changed)


def smallest(weight: Tensor, share: float) -> Tensor:
    """Which entries are the smallest by size: bool, of the weight's shape, round(share · entries) of them true."""
    size = weight.abs().flatten().float() if weight.dtype != torch.float64 else weight.abs().flatten()
    count = round(share * len(size))
    chosen = torch.zeros(len(size), dtype=torch.bool, device=weight.device)
    if count:
        edge = size.kthvalue(count).values
        chosen = size < edge
        # bf16 has many equal weights: without a rule for them the share would be off
        ties = (size == edge).nonzero().flatten()
        chosen[ties[: count - int(chosen.sum())]] = True
    return chosen.view_as(weight)


def sparsity(lm: LM) -> Sparsity:
    """Count zeros in the matrices of the decoder's layers."""
    zeros = total = dense = csr = bits = 0
    by_matrix = {}
    for name, module in _matrices(lm).items():
        weight: Any = module.weight
        empty, size = int((weight == 0).sum()), weight.element_size()
        filled = weight.numel() - empty
        by_matrix[name] = empty / weight.numel()
        zeros, total, dense = zeros + empty, total + weight.numel(), dense + weight.numel() * size
        csr += filled * (size + INDEX) + (weight.shape[0] + 1) * INDEX
        bits += filled * size + (weight.numel() + 7) // 8
    return Sparsity(zeros / total, by_matrix, dense, csr, bits)


def _matrices(lm: LM) -> dict[str, nn.Module]:
    """The linear layers inside the decoder's layers, by name; embeddings and the last projection are not."""
    layers = getattr(lm.model.get_decoder(), "layers", None)
    if layers is None:
        raise LabkitError(f"The decoder of {lm.name} has no list of layers.", "Prune a Llama-like model.")
    inside = {id(module) for module in layers.modules() if type(module) is nn.Linear}
    return {name: module for name, module in lm.model.named_modules() if id(module) in inside}
