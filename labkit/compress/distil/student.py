"""A student: a small Llama with the teacher's tokenizer, cut out of the teacher or made of random weights."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.initialization import no_init_weights

from labkit.compress.prune.importance import importance
from labkit.compress.prune.shrink import Counts, choose, shrink
from labkit.compress.prune.units import units
from labkit.errors import LabkitError
from labkit.models import LM

STARTS = ("teacher", "random")

SHAPES: dict[str, dict[str, Any]] = {
    "narrow": {"layers": 2, "hidden": 160, "heads": 4, "kv_heads": 2, "neurons": 480},
    "half as deep": {"layers": 2, "hidden": 512, "heads": 8, "kv_heads": 2, "neurons": 384},
    "one layer": {"layers": 1, "hidden": 512, "heads": 8, "kv_heads": 2, "neurons": 1152},
}
"""Students of labcoder: 2.0, 6.7 and 6.6M parameters of its 13.9M. The first is 4 MB in 16 bits."""

SEQUENCES, LENGTH = 16, 128
"""Of the text from which importance is judged."""


@torch.no_grad()
def student(
    lm: LM,
    *,
    layers: int = 2,
    hidden: int = 160,
    heads: int = 4,
    kv_heads: int = 2,
    neurons: int = 480,
    start: str = "teacher",
    tokens: Tensor | None = None,
    seed: int = 0,
) -> LM:
    """A model of the given shape with under half of the teacher's parameters, on the teacher's device in its dtype.

    Args:
        lm: the teacher, a LlamaForCausalLM; it stays as it is.
        layers, heads, kv_heads, neurons: at most the teacher's; heads / kv_heads may not exceed the teacher's.
        hidden: width of the residual stream, a multiple of heads; the head dimension stays.
        start: "teacher" takes evenly spread layers, the first among them (Sanh et al. 2019, "DistilBERT"), their most
            important heads and neurons (see labkit.compress.prune), and of the residual stream the directions in
            which most happens (Ashkboos et al. 2024, "SliceGPT"). "random" takes nothing: normal weights, layers
            that begin as the identity.
        tokens: LongTensor [n ≥ 2048] of training text to judge importance and directions by; None goes by weights.
        seed: of the random weights.

    Returns:
        A new LM, which labkit.models.packed_checkpoint.save writes, labkit.load reads and the engine runs.

    Raises:
        LabkitError: the teacher is no Llama, the shape does not fit into it, or is half as large or larger.
    """
    _check(lm, start)
    config = _config(lm, layers, hidden, heads, kv_heads, neurons)
    with no_init_weights():  # which would draw from torch's own state
        model: Any = LlamaForCausalLM(config)
    model.tie_weights()
    cast(model, torch.promote_types(lm.dtype, torch.float32))
    ours, theirs = parameters(model), parameters(lm.model)
    if not 2 * ours < theirs:
        raise LabkitError(
            f"The student has {ours:,} parameters, {ours / theirs:.0%} of its teacher's {theirs:,}.",
            "Give it fewer layers or a smaller width, so that it is under half the size.",
        )
    if start == "teacher":
        _cut(lm, model, config, tokens)
    else:
        _draw(model, seed)
    model.generation_config = copy.deepcopy(lm.model.generation_config)
    cast(model.to(lm.device).eval(), lm.dtype)
    return LM(model, lm.tokenizer, f"{lm.name} (student)", lm.device, lm.dtype)


def _check(lm: LM, start: str) -> None:
    if not isinstance(lm.model, LlamaForCausalLM):
        raise LabkitError(
            f"{lm.name} is a {type(lm.model).__name__}; students here are Llamas.",
            "Take labcoder as the teacher.",
        )
    if start not in STARTS:
        raise LabkitError(f"A student cannot start from {start!r}.", f"Give one of {', '.join(STARTS)}.")


def parameters(model: Any) -> int:
    """How many numbers a model has learned; tied weights count once."""
    return sum(weight.numel() for weight in model.parameters())


def cast(model: Any, dtype: torch.dtype) -> None:
    """Weights in another precision, in place; `model.to(dtype)` would round the rotary frequencies too."""
    for weight in model.parameters():
        weight.data = weight.data.to(dtype)


def _config(lm: LM, layers: int, hidden: int, heads: int, kv_heads: int, neurons: int) -> LlamaConfig:
    teacher = lm.config
    sizes = {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": neurons,
    }
    wrong = [name for name, size in sizes.items() if not 1 <= size <= getattr(teacher, name)]
    if wrong or hidden % heads or heads % kv_heads or heads / kv_heads > units(lm).group:
        raise LabkitError(
            f"No student of {lm.name} has the sizes {sizes}.",
            "Nothing may be larger than in the teacher, nor may heads / kv_heads; hidden must be a multiple of heads "
            "and heads of kv_heads.",
        )
    # as small a share of a mean over fewer channels
    eps = teacher.rms_norm_eps * teacher.hidden_size / hidden
    settings = {**teacher.to_dict(), **sizes, "head_dim": units(lm).head_dim, "rms_norm_eps": eps}
    return LlamaConfig(**settings)


def _cut(lm: LM, model: Any, config: Any, tokens: Tensor | None) -> None:
    """Fill the student with what of the teacher matters most."""
    if tokens is None:  # sizes of weights need no text: none is looked at
        scores = importance(lm, torch.zeros(0), "magnitude")
    else:
        scores = importance(lm, tokens, "taylor", length=LENGTH, sequences=SEQUENCES)
    keep = Counts(config.num_attention_heads, config.num_key_value_heads, config.intermediate_size, 0.0)
    source = shrink(lm, *choose(scores, keep)).model.state_dict()
    ours, theirs = config.num_hidden_layers, lm.config.num_hidden_layers
    basis = _directions(lm, tokens)[:, : config.hidden_size]
    for name, target in model.state_dict().items():
        parts = name.split(".")
        if parts[1] == "layers":
            parts[2] = str(int(parts[2]) * theirs // ours)
        key = ".".join(parts)
        whole = config.hidden_size == lm.config.hidden_size
        target.copy_(source[key] if whole else _turned(key, source, basis))


def _directions(lm: LM, tokens: Tensor | None) -> Tensor:
    """Directions of the residual stream [width, width], columns, the one in which most happens first, on the CPU.

    Embeddings and, on some text, the states that layers read count alike; a state counts by where it points, since
    each is scaled before it is read.
    """
    embeddings: Any = lm.model.get_input_embeddings()
    embedded = embeddings.weight.double().cpu()
    second = embedded.T @ embedded / embedded.square().sum()
    if tokens is not None:
        ids = tokens[: SEQUENCES * LENGTH].view(SEQUENCES, LENGTH).to(lm.device)
        states = lm.model(ids, use_cache=False, output_hidden_states=True).hidden_states[:-1]
        flat = functional.normalize(torch.stack(states).double().cpu().flatten(0, -2), dim=-1)
        second += flat.T @ flat / len(flat)
    return torch.linalg.eigh(second).eigenvectors.flip(-1)


def _turned(name: str, source: dict[str, Tensor], basis: Tensor) -> Tensor:
    """A weight [.., width] or [width, ..] in the coordinates of the basis [width, narrower].

    RMSNorm does not mind a rotation once its weight is part of the matrices that read it; what is left of it makes up
    for the mean over fewer channels. The last norm stands before the tied embeddings, so it keeps its own weight,
    turned as far as a diagonal can be.
    """
    weight, stretch = source[name].double().cpu(), (basis.shape[0] / basis.shape[1]) ** 0.5
    if name == "model.norm.weight":
        return stretch * (basis * weight[:, None] * basis).sum(0)
    if weight.ndim == 1:
        return torch.full((basis.shape[1],), stretch)
    if name.endswith(("o_proj.weight", "down_proj.weight")):
        return basis.T @ weight
    if ".layers." in name:
        norm = "input_layernorm" if ".self_attn." in name else "post_attention_layernorm"
        weight = weight * source[name.rsplit(".", 3)[0] + f".{norm}.weight"].double().cpu()
    return weight @ basis


def _draw(model: Any, seed: int) -> None:
    """Random weights; each layer begins as no change to the residual stream."""
    generator = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        if weight.ndim == 1:
            weight.fill_(1.0)
        elif name.endswith(("o_proj.weight", "down_proj.weight")):
            weight.zero_()
        else:
            spread = 0.02 if "embed" in name or "lm_head" in name else 1 / math.sqrt(weight.shape[1])
            weight.normal_(0, spread, generator=generator)
