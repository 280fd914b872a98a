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
from labkit.compress.awq import awq
from labkit.compress.calibration import Calibration, calibrate
from labkit.compress.layers import linears
from labkit.compress.smooth import smooth
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

Packing = tuple[str, Packed, Tensor | None]
"""A layer, its packed weight, the scale of its input or None."""

Method = Callable[[LM, dict[str, Format], Calibration | None], Iterator[Packing]]
"""What gives them, from a model with modules of its own, formats by layer, and a calibration."""


def quantize(
    lm: LM,
    scheme: str | Format = "int8",
    *,
    method: str = "rtn",
    calibration: Calibration | None = None,
    keep: Sequence[str] = (),
    plan: Mapping[str, Format | None] | None = None,
    in_place: bool = False,
) -> LM:
    """A model whose linear layers are packed.

    Args:
        scheme: "int8" (a scale for each row), "int4" (zero points, groups of 128), "fp8", "w8a8" (int8 products), or a
            Format for the weights.
        method: "rtn" rounds to the nearest; "awq" scales and clips weights by the inputs they meet; "smoothquant" moves
            outliers of the inputs into weights, for int8 products.
        calibration: what those two learn from, see `calibrate`; made from labkit's own training text if not given.
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
    check_plain(lm)
    formats = _formats(lm, made, keep, plan or {})
    target = lm if in_place else replace(lm, model=shared_copy(lm.model))
    with torch.inference_mode(False), torch.no_grad():
        for name, packed, scale in METHODS[method](target, formats, calibration):
            _put(target.model, name, packed, scale, activations)
    shown = str(scheme) if isinstance(scheme, str) else str(made)
    target.name = f"{lm.name} ({shown}{'' if method == 'rtn' else f', {method}'}{', mixed' if plan else ''})"
    return target


def shared_copy(model: Any) -> Any:
    """A model of its own modules on the same tensors: replacing one does not touch the original."""
    tensors = [*model.parameters(), *model.buffers()]
    copied = copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})
    return copied.eval()


def round_to_nearest(
    lm: LM, formats: dict[str, Format], calibration: Calibration | None = None
) -> Iterator[Packing]:
    """Every weight to the nearest number of its grid; nothing is learned."""
    for name, made in formats.items():
        yield name, quantise(cast(Tensor, lm.model.get_submodule(name).weight), made), None


def _awq(lm: LM, formats: dict[str, Format], calibration: Calibration | None) -> Iterator[Packing]:
    return awq(lm, calibration or calibrate(lm), formats).carry_out(lm, formats)


def _smoothquant(lm: LM, formats: dict[str, Format], calibration: Calibration | None) -> Iterator[Packing]:
    return smooth(lm, calibration or calibrate(lm), alpha=None, names=formats).carry_out(lm, formats)


METHODS: dict[str, Method] = {"rtn": round_to_nearest, "awq": _awq, "smoothquant": _smoothquant}


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


def check_plain(lm: LM) -> None:
    """Refuse what is not a plain model.

    Raises:
        LabkitError: it is quantised, fused, in an engine, or has no linear layers.
    """
    modules = list(lm.model.modules())
    if any(isinstance(module, QuantizedLinear) for module in modules):
        raise LabkitError(f"{lm.name} is quantised already.", "Quantise the original model.")
    if any("forward" in vars(module) for module in modules):
        raise LabkitError(f"{lm.name} has fused kernels on it.", "Call labkit.fuse.remove(lm) first.")
    if lm.config._attn_implementation == ENGINE:
        raise LabkitError(f"{lm.name} is in an engine.", "Close the engine first.")
    if not linears(lm):
        raise LabkitError(f"{lm.name} has no linear layers that labkit knows.", "Load it with labkit.load.")
