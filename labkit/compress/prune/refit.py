"""Repair in closed form: the columns that stay take over, as well as they can, for those that went.

What heads and neurons say overlaps. So after a cut the projection that reads them, `o_proj` or `down_proj`, is fitted
anew by least squares to what it gave in the whole model (the idea of reconstruction in He et al. 2017, "Channel
Pruning for Accelerating Very Deep Neural Networks"). Layers go in order, each reading what the repaired layers
before it make of the text, so that errors do not add up. No gradients, no learning rate; training can follow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from labkit.compress.prune.rows import sequences_of
from labkit.compress.prune.units import Units, units
from labkit.errors import LabkitError
from labkit.models import LM


@torch.no_grad()
def refit(
    lm: LM, small: LM, tokens: Tensor, *, length: int = 256, batch: int = 8, ridge: float = 1e-2
) -> None:
    """Fit the output and down projections of `small`, in place, to what those of `lm` give.

    Args:
        lm: the whole model; it stays as it is.
        small: what `shrink` made of it.
        tokens: LongTensor [n] of training text; a few times the width of a projection's input at least. What all
            these projections of `lm` give on it is held meanwhile: 2 · layers · tokens · hidden numbers.
        length, batch: tokens of a sequence, and sequences of one forward.
        ridge: how strongly weights hold on to what they are, as a share of their input's mean square.

    Raises:
        LabkitError: too few tokens, other layers, or ridge ≤ 0 (nothing else bounds what never occurs).
    """
    if ridge <= 0:
        raise LabkitError(
            f"A ridge of {ridge} bounds nothing.", "Give a small positive number, such as 0.01."
        )
    whole, cut = units(lm), units(small)
    if len(whole.layers) != len(cut.layers) or whole.hidden != cut.hidden:
        raise LabkitError(
            f"{small.name} is not {lm.name} with fewer units.", "Give the model that shrink made of it."
        )
    parts = sequences_of(lm, tokens, length).split(batch)
    wanted = [_given(lm, whole, part) for part in parts]
    for before, after in zip(whole.layers, cut.layers, strict=True):
        for old, new in ((before.out, after.out), (before.down, after.down)):
            _fit(small, new, parts, [each.pop(old) for each in wanted], ridge)


def _fit(small: LM, name: str, parts: tuple[Tensor, ...], wanted: list[Tensor], ridge: float) -> None:
    """Add to W [out, in] the D that minimises |Y - X (W + D)ᵀ|² + λ |D|²: D = (Y - X Wᵀ)ᵀ X (XᵀX + λ)⁻¹.

    Args:
        wanted: Y [tokens, out] for each of the parts.
    """
    linear: Any = small.model.get_submodule(name)
    wide = torch.promote_types(small.dtype, torch.float32)
    size = linear.in_features
    gram = torch.zeros(size, size, device=small.device, dtype=torch.float64)
    right = torch.zeros(linear.out_features, size, device=small.device, dtype=torch.float64)
    for part, target in zip(parts, wanted, strict=True):
        read, made = _at(small, name, part)
        x = read.to(wide)
        gram += x.T @ x
        right += (target.to(wide) - made.to(wide)).T @ x
    gram.diagonal().add_(ridge * gram.diagonal().mean().clamp_min(1e-30))
    change = torch.linalg.solve(gram, right.T).T
    linear.weight.copy_((linear.weight.double() + change).to(linear.weight.dtype))


def _given(lm: LM, found: Units, ids: Tensor) -> dict[str, Tensor]:
    """What every output and down projection of the whole model gives on some sequences, [tokens, out] by name."""
    given: dict[str, Tensor] = {}

    def note(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            given[name] = output.flatten(0, -2)

        return hook

    names = [name for layer in found.layers for name in (layer.out, layer.down)]
    hooks = [lm.model.get_submodule(name).register_forward_hook(note(name)) for name in names]
    try:
        _run(lm, ids)
    finally:
        for hook in hooks:
            hook.remove()
    return given


class _Reached(Exception):
    """Ends a forward where nothing after it is needed."""


def _at(lm: LM, name: str, ids: Tensor) -> tuple[Tensor, Tensor]:
    """What a linear layer reads and gives on some sequences: [tokens, in] and [tokens, out]."""
    seen: list[Tensor] = []

    def note(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        seen.extend((inputs[0].flatten(0, -2), output.flatten(0, -2)))
        raise _Reached

    hook = lm.model.get_submodule(name).register_forward_hook(note)
    try:
        _run(lm, ids)
    except _Reached:
        pass
    finally:
        hook.remove()
    return seen[0], seen[1]


def _run(lm: LM, ids: Tensor) -> None:
    """The decoder on sequences [n, length], without the last projection."""
    decoder: Callable[..., Any] = lm.model.get_decoder()
    decoder(input_ids=ids.to(lm.device), use_cache=False)
