"""Build a model straight on its device and fill it with seeded random weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.initialization import no_init_weights


def skeleton(config: Any, dtype: torch.dtype) -> PreTrainedModel:
    """The model without storage (on torch's meta device): every shape is known, nothing is allocated."""
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype)
    return model


def stored_bytes(model: PreTrainedModel) -> int:
    """Bytes of all parameters, tied ones once; right on the meta device too."""
    return sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())


@torch.no_grad()
def materialise(config: Any, *, device: torch.device, dtype: torch.dtype, seed: int) -> PreTrainedModel:
    """A model with random weights, allocated on `device` in `dtype` and never anywhere else.

    The peak of memory is the model itself: modules are created on the device with their initialisation
    skipped, then each tensor is filled in place. Matrices are normal with the configuration's
    `initializer_range`, norms are around 1, so activations stay finite through any number of layers.
    The same seed gives the same weights on one kind of device; CPU and CUDA draw different ones.
    """
    with torch.device(device), no_init_weights():
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.tie_weights()
    generator = torch.Generator(device).manual_seed(seed)
    spread = float(getattr(config.get_text_config(decoder=True), "initializer_range", 0.02))
    for name, parameter in model.named_parameters():
        _fill(name, parameter, spread, generator)
    return model.eval()


def _fill(name: str, parameter: nn.Parameter, spread: float, generator: torch.Generator) -> None:
    is_norm = parameter.ndim < 2 and not name.endswith("bias")
    parameter.normal_(1.0 if is_norm else 0.0, 0.05 if is_norm else spread, generator=generator)
