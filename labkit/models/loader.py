"""load(): from a name to a model that is ready to run, or to one clear error."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from labkit.errors import LabkitError
from labkit.models import fill, memory, sources
from labkit.models.inflation import inflate
from labkit.models.lm import LM
from labkit.models.packed_checkpoint import quiet
from labkit.models.place import largest_sensible, resolve_device, resolve_dtype
from labkit.models.presets import PRESETS, inflated_config
from labkit.models.refuse import TAKEN, packed_here, refuse_config, refuse_model


def load(
    name: str | None = None,
    *,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    random_weights: bool = False,
    seed: int = 0,
) -> LM:
    """Load a model by name.

    Args:
        name: "labcoder", "labcoder-draft", "labcoder@1b|7b|8b", a local folder, a hub id, or "auto" for the
            largest that makes sense here. None means the environment variable LABKIT_MODEL, else "auto".
        device: "cpu", "cuda" or a torch.device. None means the GPU if there is one.
        dtype: how weights are stored. None means bfloat16 on a GPU that has it, else float16; float32 on
            the CPU.
        random_weights: that architecture with seeded random weights, the control for a speed measurement.
        seed: of the random weights, and of the filling around an inflated model.

    Raises:
        LabkitError: unknown name, no network, too little memory, pickled weights, an architecture that
            labkit does not take; each says what would work.
    """
    if not isinstance(name, str | None):
        raise LabkitError(
            f"{name!r} is not the name of a model.", 'Give text, such as "labcoder" or str(folder).'
        )
    name = name or os.environ.get("LABKIT_MODEL") or "auto"
    where = resolve_device(device)
    stored = resolve_dtype(dtype, where)
    if name == "auto":
        name = largest_sensible(where, stored, _vocab())
    base, _, preset = name.partition("@")
    if base == "labcoder" and preset in PRESETS:
        model, folder = _inflated(preset, where, stored, random_weights, seed)
    else:
        model, folder = _checkpoint(name, where, stored, random_weights, seed)
    title = Path(name).name if Path(name).expanduser().is_dir() else name
    title += " (random weights)" if random_weights else ""
    return LM(model, _tokenizer(folder, name), title, where, stored)


def _inflated(
    preset: str, device: torch.device, dtype: torch.dtype, random_weights: bool, seed: int
) -> tuple[PreTrainedModel, Path]:
    name = f"labcoder@{preset}"
    folder = sources.config_folder("labcoder")
    config = inflated_config(_read_config(folder, "labcoder"), PRESETS[preset])
    memory.require(name, fill.stored_bytes(fill.skeleton(config, dtype)), device, dtype, config.vocab_size)
    if random_weights:
        return fill.materialise(config, device=device, dtype=dtype, seed=seed), folder
    small = _from_folder(folder, "labcoder", torch.float32)
    return inflate(small, config, device=device, dtype=dtype, seed=seed), folder


def _checkpoint(
    name: str, device: torch.device, dtype: torch.dtype, random_weights: bool, seed: int
) -> tuple[PreTrainedModel, Path]:
    folder = sources.config_folder(name)
    config = _read_config(folder, name)
    refuse_config(config, name)
    try:
        skeleton = fill.skeleton(config, dtype)
    except Exception as error:  # a model class may trip over its settings in any way
        raise LabkitError(f"{name} cannot be built from its config.json: {error}.", TAKEN) from error
    refuse_model(skeleton, name)
    packed = packed_here(config)
    if packed and random_weights:
        raise LabkitError(
            f"{name} is quantised: there are no random weights of it.", "Load the original model."
        )
    if not packed:
        memory.require(name, fill.stored_bytes(skeleton), device, dtype, _vocab())
    if random_weights:
        return fill.materialise(config, device=device, dtype=dtype, seed=seed), folder
    folder = sources.weights_folder(name, folder)
    if packed:
        stored = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        memory.require(name, stored, device, dtype, _vocab())
    return _from_folder(folder, name, dtype).to(device), folder  # type: ignore[arg-type]


def _vocab() -> int:
    """Tokens of the embedded vocabulary, for sizes of the inflated models."""
    return int(_raw_config(sources.config_folder("labcoder"), "labcoder")["vocab_size"])


def _raw_config(folder: Path, name: str) -> dict[str, Any]:
    try:
        found = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except ValueError as error:
        raise LabkitError(
            f"The config.json of {name} is not valid JSON: {error}.", "Fetch it again."
        ) from error
    if not isinstance(found, dict):
        raise LabkitError(f"The config.json of {name} is not a table of settings.", "Fetch it again.")
    return found


def _read_config(folder: Path, name: str) -> Any:
    """The configuration, refusing what would need code from the checkpoint."""
    raw = _raw_config(folder, name)
    kind = raw.get("model_type")
    if kind not in CONFIG_MAPPING_NAMES:
        if "auto_map" in raw:
            raise LabkitError(
                f"{name} brings its own Python code (trust_remote_code), which labkit never runs.",
                f"Take a model that transformers {transformers.__version__} implements itself. {TAKEN}",
            )
        version = transformers.__version__
        raise LabkitError(f"transformers {version} knows no architecture {kind!r} ({name}).", TAKEN)
    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (ValueError, TypeError, KeyError, OSError, StrictDataclassError) as error:
        raise LabkitError(f"The configuration of {name} does not make sense: {error}.", TAKEN) from error


def _from_folder(folder: Path, name: str, dtype: torch.dtype) -> PreTrainedModel:
    """Read safetensors weights; every weight of the architecture must be there in its shape."""
    auto: Any = AutoModelForCausalLM
    try:
        with quiet():
            model, report = auto.from_pretrained(
                folder,
                dtype=dtype,
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
            )
    except LabkitError:
        raise
    except Exception as error:  # safetensors, JSON and shape errors share no base class
        raise LabkitError(f"The weights of {name} cannot be read: {error}.", "Fetch them again.") from error
    absent = sorted(report["missing_keys"]) + sorted(str(key) for key in report["mismatched_keys"])
    if absent:
        raise LabkitError(
            f"{name} lacks {len(absent)} of its architecture's weights, such as {absent[0]}.",
            "The checkpoint is incomplete or of another shape than its config.json; fetch it again.",
        )
    checked: PreTrainedModel = model.eval()
    return checked


def _tokenizer(folder: Path, name: str) -> Any:
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # tokenizer libraries raise whatever they like
        raise LabkitError(
            f"The tokenizer of {name} cannot be loaded: {error}.",
            "It belongs beside the weights, as tokenizer.json.",
        ) from error
