"""A model in few bits with scales and clips that a calibration found, and which of its matrices do the damage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from labkit.compress import Format, linears, shared_copy
from labkit.compress.awq import awq
from labkit.compress.calibration import Calibration
from labkit.compress.scaled import Scaled
from labkit.compress.sensitivity import Outputs, batches
from labkit.models import LM
from labkit.models.linear import QuantizedLinear

CLIPS = (1.0, 0.95, 0.9, 0.8, 0.7)
RATIOS = 5


def search(lm: LM, calibration: Calibration, made: Format, *, scales: bool = True) -> Scaled:
    """AWQ on a coarser grid than labkit's own, so that it takes seconds: scales of columns, then clips of groups.

    Args:
        scales: search for them as well; else for clips alone.
    """
    return awq(lm, calibration, made, ratios=RATIOS if scales else 0, clips=CLIPS)


@torch.no_grad()
def rounded(
    lm: LM,
    found: Scaled,
    made: Format,
    plan: Mapping[str, Format | None] | None = None,
    *,
    activations: str | None = None,
) -> LM:
    """The model with what a search found carried out.

    Args:
        found: of `search` or of labkit.compress.smooth; its clips are for `made`.
        plan: layers with another format, or None for those that keep their precision.
        activations: "int8" for int8 products.
    """
    model = shared_copy(lm.model)
    for name, value in found.norms.items():
        place, _, own = name.rpartition(".")
        setattr(model.get_submodule(place), own, nn.Parameter(value.clone(), requires_grad=False))
    for name, linear in linears(lm).items():
        chosen = made if plan is None else plan.get(name, made)
        clips = found.clips if chosen == made else {}
        bias = found.bias(name, linear)
        if chosen is None:
            layer: Any = _plain(found.weight(name, linear).to(linear.weight.dtype), bias)
        else:
            packed = replace(found, clips=clips).packed(name, linear, chosen)
            layer = QuantizedLinear(packed, bias, activations=activations, input_scale=found.inputs.get(name))
        model.set_submodule(name, layer.eval())
    return LM(model, lm.tokenizer, f"{lm.name} (calibrated)", lm.device, lm.dtype)


@torch.no_grad()
def blame(lm: LM, other: LM, *, tokens: int = 128) -> dict[str, float]:
    """KL [nats a token] that each matrix of another model does alone, put into this one; the worst first.

    For models whose norms and scales are this one's, on training text.
    """
    outputs, found = Outputs(lm, batches(lm, None, tokens)), {}
    for name, linear in linears(lm).items():
        weight: Tensor = linear.weight.data
        theirs: Any = other.model.get_submodule(name)
        packed = isinstance(theirs, QuantizedLinear)
        taken = theirs.packed.dequantise(weight.dtype) if packed else theirs.weight
        try:
            linear.weight.data = taken.to(weight)
            found[name], _ = outputs.compare(lm, name)
        finally:
            linear.weight.data = weight
    return dict(sorted(found.items(), key=lambda pair: -pair[1]))


def _plain(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    layer = nn.Linear(1, 1, bias=bias is not None)
    layer.out_features, layer.in_features = weight.shape
    layer.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias, requires_grad=False)
    return layer
