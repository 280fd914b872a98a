"""quantize(): the same model with its weights in few bits.

    small = quantize(lm, "int8")                       # a new LM; what is not quantised is shared with the old one
    small = quantize(lm, "int4", method="awq")         # calibrated on text
    small = quantize(lm, plan={"model.layers.0.mlp.down_proj": Format("int8"), …})

Every matrix product of the decoder layers is packed. The embedding and the last projection keep their precision
unless a plan names them: they are a small part of a large model, and much of a small one's quality.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from labkit.cache.attention import NAME as ENGINE
from labkit.errors import LabkitError
from labkit.kernels.formats import Format
from labkit.kernels.packed import Packed, quantise
from labkit.kernels.w8a8 import refusal
from labkit.models import LM
from labkit.models.linear import QuantizedLinear

SCHEMES: dict[str, tuple[Format, str | None]] = {
    "int8": (Format("int8"), None),
    "int4": (Format("int4", 128, symmetric=False), None),
    "fp8": (Format("fp8"), None),
    "w8a8": (Format("int8"), "int8"),
}
"""Name → format of the weights, and of the activations."""

Method = Callable[[LM, dict[str, Format], Any], Iterator[tuple[str, Packed, Tensor | None]]]
"""(a model of one's own, formats by layer, calibration) → layer, its packed weight, the scale of its input or None."""


def quantize(
    lm: LM,
    scheme: str | Format = "int8",
    *,
    method: str = "rtn",
    calibration: Any = None,
    keep: Sequence[str] = (),
    plan: Mapping[str, Format | None] | None = None,
    in_place: bool = False,
) -> LM:
    """A model whose linear layers are packed.

    Args:
        scheme: "int8" (a scale for each row), "int4" (zero points, groups of 128), "fp8", "w8a8" (int8 products), or a
            Format for the weights.
        method: "rtn" rounds to the nearest; others are in labkit.compress.METHODS.
        calibration: what the method learns from; made from labkit's own training text if not given.
        keep: names of layers, or ends of names, that stay as they are.
        plan: layer → its Format, or None to keep it; layers that are not named follow the scheme.
        in_place: turn `lm` itself into the result, freeing weights one by one.

    Returns:
        The quantised LM; with in_place that is `lm`.

    Raises:
        LabkitError: an unknown scheme, method or layer; a model that is quantised, fused or in an engine already.
    """
    made, activations = _scheme(scheme)
    if method not in METHODS:
        raise LabkitError(f"There is no method {method!r}.", f"Choose one of {', '.join(METHODS)}.")
    _check(lm)
    formats = _formats(lm, made, keep, plan or {})
    target = lm if in_place else replace(lm, model=shared_copy(lm.model))
    with torch.inference_mode(False), torch.no_grad():
        for name, packed, scale in METHODS[method](target, formats, calibration):
            _put(target.model, name, packed, scale, activations)
    shown = str(scheme) if isinstance(scheme, str) else str(made)
    target.name = f"{lm.name} ({shown}{'' if method == 'rtn' else f', {method}'}{', mixed' if plan else ''})"
    return target


def linears(lm: LM) -> dict[str, nn.Linear]:
    """The linear layers of the decoder by name, in the order of the model; not the last projection."""
    head = lm.model.get_output_embeddings()
    return {
        name: module
        for name, module in lm.model.named_modules()
        if type(module) is nn.Linear and module is not head
    }


def shared_copy(model: Any) -> Any:
    """A model of its own modules on the same tensors: replacing one does not touch the original."""
    tensors = [*model.parameters(), *model.buffers()]
    copied = copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})
    return copied.eval()


def round_to_nearest(
    lm: LM, formats: dict[str, Format], calibration: Any = None
) -> Iterator[tuple[str, Packed, Tensor | None]]:
    """Every weight to the nearest number of its grid; nothing is learned."""
    for name, made in formats.items():
        yield name, quantise(cast(Tensor, lm.model.get_submodule(name).weight), made), None


METHODS: dict[str, Method] = {"rtn": round_to_nearest}


def _put(model: Any, name: str, packed: Packed, scale: Tensor | None, activations: str | None) -> None:
    linear = model.get_submodule(name)
    chosen = activations if refusal(packed) is None else None
    layer = QuantizedLinear(packed, linear.bias, activations=chosen, input_scale=scale)
    model.set_submodule(name, layer.eval())


def _scheme(scheme: str | Format) -> tuple[Format, str | None]:
    if isinstance(scheme, Format):
        return scheme, None
    if scheme not in SCHEMES:
        raise LabkitError(
            f"There is no scheme {scheme!r}.", f"Choose one of {', '.join(SCHEMES)}, or give a Format."
        )
    return SCHEMES[scheme]


def _formats(
    lm: LM, made: Format, keep: Sequence[str], plan: Mapping[str, Format | None]
) -> dict[str, Format]:
    """The format of each layer that is to be packed."""
    known: dict[str, nn.Module] = dict(linears(lm))
    modules = dict(lm.model.named_modules())
    for name in plan:
        module = modules.get(name)
        if type(module) is not nn.Linear:
            near = f"Its linear layers are {', '.join(list(known)[:3])} …"
            raise LabkitError(f"{lm.name} has no linear layer {name!r}.", near)
        tied = lm.model.get_input_embeddings().weight is module.weight
        if plan[name] is not None and tied:
            raise LabkitError(f"{name} shares its weight with the embedding.", "Leave it out of the plan.")
        known[name] = module
    ends = [end for end in keep if not any(name.endswith(end) for name in known)]
    if ends:
        raise LabkitError(f"No linear layer's name ends in {ends[0]!r}.", "See labkit.compress.linears(lm).")
    chosen: dict[str, Format | None] = {
        name: plan.get(name, None if any(name.endswith(end) for end in keep) else made) for name in known
    }
    return {name: one for name, one in chosen.items() if one is not None}


def _check(lm: LM) -> None:
    """Refuse what is not a plain model."""
    modules = list(lm.model.modules())
    if any(isinstance(module, QuantizedLinear) for module in modules):
        raise LabkitError(f"{lm.name} is quantised already.", "Quantise the original model.")
    if any("forward" in vars(module) for module in modules):
        raise LabkitError(f"{lm.name} has fused kernels on it.", "Call labkit.fuse.remove(lm) first.")
    if lm.config._attn_implementation == ENGINE:
        raise LabkitError(f"{lm.name} is in an engine.", "Close the engine first.")
    if not linears(lm):
        raise LabkitError(f"{lm.name} has no linear layers that labkit knows.", "Load it with labkit.load.")
