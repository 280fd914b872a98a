"""Quantised models on disk: a folder of safetensors that transformers reads, through the quantiser registered here.

config.json names every packed layer and its format, under `quantization_config`. So `labkit.load(folder)` restores
the model bit for bit, and so does transformers' own from_pretrained once labkit.models is imported. Formats are not
guessed: a layer that the configuration does not name is a plain one.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel
from transformers.quantizers import HfQuantizer, register_quantization_config, register_quantizer
from transformers.utils import logging
from transformers.utils.quantization_config import QuantizationConfigMixin

from labkit.errors import LabkitError
from labkit.kernels.formats import Format
from labkit.models.linear import QuantizedLinear
from labkit.models.lm import LM

METHOD = "labkit"


@register_quantization_config(METHOD)
class PackedConfig(QuantizationConfigMixin):
    """What config.json keeps.

    Args:
        modules: name of a layer → fields of its Format, "activations", and "scaled" if its input is.
    """

    def __init__(self, modules: dict[str, dict[str, Any]] | None = None, **_: Any) -> None:
        self.quant_method: Any = METHOD
        self.modules = modules or {}

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {"quant_method": METHOD, "modules": copy.deepcopy(self.modules)}


@register_quantizer(METHOD)
class PackedQuantizer(HfQuantizer):
    """Puts empty packed layers in place before transformers reads the weights."""

    is_trainable = False

    def is_serializable(self, *_: Any, **__: Any) -> bool:
        """Whether save_pretrained may write it."""
        return True

    def _process_model_before_weight_loading(self, model: Any, **_: Any) -> None:
        modules: dict[str, dict[str, Any]] = self.quantization_config.modules  # type: ignore[attr-defined]
        for name, fields in modules.items():
            try:
                linear = model.get_submodule(name)
                fields = dict(fields)
                activations, scaled = fields.pop("activations", None), bool(fields.pop("scaled", False))
                made = Format(**fields)
                layer = QuantizedLinear.empty(
                    linear.in_features, linear.out_features, made, dtype=linear.weight.dtype,
                    bias=linear.bias is not None, activations=activations, scaled=scaled,
                )  # fmt: skip
            except (AttributeError, TypeError) as error:
                raise LabkitError(
                    f"The packed layer {name} of this checkpoint cannot be made: {error}.",
                    "Quantise the model again.",
                ) from error
            model.set_submodule(name, layer.to(linear.weight.device))


def save(lm: LM, folder: str | Path) -> Path:
    """Write a model, quantised or not, and its tokenizer.

    Args:
        folder: made if it is not there; must be empty or hold an earlier save.

    Returns:
        The folder, which `labkit.load(str(folder))` reads.

    Raises:
        LabkitError: the folder holds other things, or a layer is packed in a way that cannot be saved.
    """
    target = Path(folder).expanduser()
    if target.exists() and any(target.iterdir()) and not (target / "config.json").is_file():
        raise LabkitError(f"{folder} is not empty.", "Give a new folder, or one that a model was saved to.")
    for old in target.glob("*.safetensors*"):
        old.unlink()
    model: Any = lm.model
    before = getattr(model.config, "quantization_config", None)
    packed = describe(model)
    try:
        if packed:
            model.config.quantization_config = PackedConfig(packed)
        with quiet():
            model.save_pretrained(target)
        lm.tokenizer.save_pretrained(target)
    finally:
        if packed and before is None:
            del model.config.quantization_config
        elif packed:
            model.config.quantization_config = before
    return target


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars: in a notebook's output they change at every run."""
    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if bars:
            logging.enable_progress_bar()


def describe(model: PreTrainedModel) -> dict[str, dict[str, Any]]:
    """The packed layers of a model, as config.json names them."""
    return {
        name: asdict(module.format)
        | {"activations": module.activations, "scaled": module.input_scale is not None}
        for name, module in model.named_modules()
        if isinstance(module, QuantizedLinear)
    }
