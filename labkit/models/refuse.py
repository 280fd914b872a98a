"""Which models labkit takes, and a reason by name for those it does not.

The techniques of the course replace attention and its cache, so a model must be a decoder in which every
layer runs softmax attention over keys and values through transformers' AttentionInterface.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface, PreTrainedModel
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)

from labkit.errors import LabkitError

TAKEN = "labkit takes decoder-only attention models: Llama, Mistral, Qwen3, Gemma 2, Phi-3, OLMo 2, GPT-2 …"

STATE_SPACE = frozenset(
    "bamba falcon_h1 falcon_mamba granitemoehybrid jamba kimi_linear lfm2 lfm2_moe mamba mamba2 minimax "
    "nemotron_h olmo_hybrid qwen3_5 qwen3_next recurrent_gemma rwkv xlstm zamba zamba2".split()
)
"""Some or all layers carry a recurrent state in place of keys and values."""

OWN_ATTENTION = {
    "bloom": "it adds ALiBi biases in attention code of its own",
    "mpt": "it adds ALiBi biases in attention code of its own",
    "falcon": "it runs attention code of its own, with ALiBi in some versions",
}

PLAIN_LAYERS = frozenset(("full_attention", "sliding_attention"))


def refuse_config(config: Any, name: str) -> None:
    """Refuse by what the configuration says, before anything is built.

    Raises:
        LabkitError: naming the architecture and why it does not fit.
    """
    reason = _reason(config)
    if reason:
        raise LabkitError(f"{name} is a {config.model_type} model and cannot be used: {reason}.", TAKEN)


def _reason(config: Any) -> str | None:
    kind = str(config.model_type)
    text = config.get_text_config(decoder=True)
    other_layers = sorted(set(getattr(text, "layer_types", None) or ()) - PLAIN_LAYERS)
    if getattr(config, "is_encoder_decoder", False):
        return "it is an encoder-decoder, and only the decoder-only kind generates from a single KV cache"
    if kind in STATE_SPACE:
        return "it keeps a recurrent (state-space) state where the course needs keys and values"
    if kind in OWN_ATTENTION:
        return OWN_ATTENTION[kind]
    if kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or kind in MODEL_FOR_MASKED_LM_MAPPING_NAMES:
        return "it is not a model that generates text from left to right"
    if getattr(text, "kv_lora_rank", None):
        return "it uses multi-head latent attention (MLA), whose cache holds no keys and values"
    if other_layers:
        return f"some of its layers are of the kind {', '.join(other_layers)}"
    if getattr(config, "quantization_config", None):
        return "its weights are already quantised; take the original ones and quantise them here"
    return None


def refuse_model(model: PreTrainedModel, name: str) -> None:
    """Refuse by what a forward really does: run two tokens on the meta device and count attention calls.

    Some architectures accept an attention function and then ignore it; only counting shows that. Models
    whose forward cannot run without data (mixtures of experts route by value) are judged by their class.

    Args:
        model: the skeleton, on the meta device.

    Raises:
        LabkitError: some layer does not go through the AttentionInterface.
    """
    layers = model.config.get_text_config(decoder=True).num_hidden_layers
    calls = _attention_calls(model)
    supported = getattr(model, "_supports_attention_backend", False) if calls is None else calls == layers
    if not supported:
        found = "its attention" if calls is None else f"only {calls} of its {layers} layers"
        verb = "does not go" if calls is None else "go"
        raise LabkitError(
            f"{name} ({model.config.model_type}) cannot be used: {found} {verb} through the interface "
            "on which the course's attention is built.",
            TAKEN,
        )


def _attention_calls(model: PreTrainedModel) -> int | None:
    """Attention calls of one forward; None where the forward cannot run on the meta device."""
    seen: set[int] = set()

    def count(module: Any, query: torch.Tensor, key: Any, value: torch.Tensor, mask: Any, **_: Any) -> Any:
        """Note the layer and return an output of the right shape, [1, tokens, heads, dim]."""
        seen.add(id(module))
        return query.new_empty(query.shape[0], query.shape[2], query.shape[1], value.shape[-1]), None

    AttentionInterface.register("labkit_count", count)
    before = model.config._attn_implementation
    try:
        model.set_attn_implementation("labkit_count")
        model(torch.zeros(1, 2, dtype=torch.long, device="meta"), use_cache=False)
    except (RuntimeError, NotImplementedError, ValueError, TypeError, AttributeError):
        return None
    finally:
        model.config._attn_implementation = before
    return len(seen)
