"""Which part of a quantised model did the damage: each is put into the original alone.

The residual stream is the same in both models, whatever was scaled inside (AWQ and SmoothQuant divide by a norm what
they multiply weights by), so whole decoder layers can be exchanged. Where nothing was scaled, linear layers can be.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from labkit.compress.layers import decoder_layers
from labkit.compress.quantize import shared_copy
from labkit.compress.sensitivity import Outputs, batches
from labkit.errors import LabkitError
from labkit.models import LM
from labkit.models.linear import QuantizedLinear


@dataclass(frozen=True)
class Damage:
    """What one part of a changed model costs, alone in the original.

    Args:
        module: its name.
        kl: mean KL(original ‖ original with this part changed) per token [nats].
        loss: rise of the mean negative log-likelihood per token [nats].
    """

    module: str
    kl: float
    loss: float


@torch.no_grad()
def damage(
    reference: LM, changed: LM, text: str | Tensor | None = None, *, tokens: int = 2048
) -> list[Damage]:
    """The parts of a quantised model, the most harmful first.

    Args:
        reference: the model that it was made from.
        text: or token ids; training text if not given.
        tokens: of it to use.

    Returns:
        Linear layers; decoder layers if their norms or other weights differ too.

    Raises:
        LabkitError: models of different shapes, no two tokens, or one that gives NaN.
    """
    lm = replace(reference, model=shared_copy(reference.model))
    outputs = Outputs(lm, batches(lm, text, tokens))
    found = []
    for name, module in _parts(reference.model, changed):
        own = lm.model.get_submodule(name)
        lm.model.set_submodule(name, module)
        try:
            found.append(Damage(name, *outputs.compare(lm, name)))
        finally:
            lm.model.set_submodule(name, own)
    return sorted(found, key=lambda each: -each.kl)


def _parts(model: nn.Module, changed: LM) -> Iterator[tuple[str, nn.Module]]:
    """Modules of the changed model that fit into the original, and are not the same there."""
    originals = dict(model.named_modules())
    names = {id(module): name for name, module in changed.model.named_modules()}
    if missing := next((name for name in names.values() if name not in originals), None):
        raise LabkitError(f"{missing} is in one model only.", "Compare a model with what it was made from.")
    for layer in decoder_layers(changed):
        prefix = names[id(layer)]
        packed = {
            name: each
            for name, each in layer.named_modules(prefix=prefix)
            if isinstance(each, QuantizedLinear)
        }
        if _alike(originals[prefix], layer):
            yield from packed.items()
        elif packed:
            yield prefix, layer


def _alike(original: nn.Module, layer: nn.Module) -> bool:
    """Whether nothing but linear layers differs."""
    theirs = dict(original.named_parameters())
    for name, value in layer.named_parameters():
        if name not in theirs or not torch.equal(value, theirs[name]):
            return False
    return all(each.input_scale is None for each in layer.modules() if isinstance(each, QuantizedLinear))
