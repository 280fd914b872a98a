"""Quantisation as a library has it ready made: bitsandbytes.

Dettmers et al. 2022, "LLM.int8(): 8-bit matrix multiplication for transformers at scale": int8 for weights and
activations, but for columns of large activations, which stay in 16 bits. Dettmers et al. 2023, "QLoRA": NF4, sixteen
numbers that would be equally frequent in normally distributed weights, one float32 scale for 64 of them.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from labkit.compress.layers import linears
from labkit.compress.quantize import check_plain, shared_copy
from labkit.errors import LabkitError
from labkit.models import LM

KINDS = ("int8", "nf4")
OUTLIER = 6.0
"""Activations beyond it stay in 16 bits: the paper's threshold."""


def bitsandbytes_model(lm: LM, kind: str = "int8") -> LM:
    """The model with bitsandbytes' own linear layers; `lm` stays as it is.

    Args:
        kind: "int8" or "nf4".

    Raises:
        LabkitError: another kind, bitsandbytes is not installed, or the model is no plain one.
    """
    if kind not in KINDS:
        raise LabkitError(f"bitsandbytes has no {kind!r} here.", f"Choose one of {', '.join(KINDS)}.")
    check_plain(lm)
    library = _library()
    target = replace(lm, model=shared_copy(lm.model))
    with torch.no_grad():
        for name, linear in linears(target).items():
            target.model.set_submodule(name, _layer(library, linear, kind).eval())
    target.name = f"{lm.name} (bitsandbytes {kind})"
    return target


def _layer(library: Any, linear: nn.Linear, kind: str) -> nn.Module:
    """Their layer with this weight, quantised on its device."""
    sizes, weight = (linear.in_features, linear.out_features), linear.weight.detach()
    layer: nn.Module
    if kind == "int8":
        layer = library.nn.Linear8bitLt(
            *sizes, bias=linear.bias is not None, has_fp16_weights=False, threshold=OUTLIER, device="meta"
        )
        parameter = library.nn.Int8Params(weight.cpu(), requires_grad=False, has_fp16_weights=False)
    else:
        layer = library.nn.Linear4bit(
            *sizes, bias=linear.bias is not None, compute_dtype=weight.dtype, quant_type="nf4", device="meta"
        )
        parameter = library.nn.Params4bit(weight.cpu(), requires_grad=False, quant_type="nf4")
    layer.weight = parameter.to(weight.device)
    if linear.bias is not None:
        layer.bias = nn.Parameter(linear.bias.detach(), requires_grad=False)
    return layer


def _library() -> Any:
    try:
        import bitsandbytes
    except ImportError as error:
        raise LabkitError(
            "bitsandbytes is not installed.",
            "Install what requirements.lock names, or use labkit's own schemes.",
        ) from error
    logging.getLogger("bitsandbytes.autograd._functions").addFilter(_not_the_cast)
    return bitsandbytes


def _not_the_cast(record: logging.LogRecord) -> bool:
    """Its int8 layers say at every call that they cast their input."""
    return "inputs will be cast" not in record.getMessage()
