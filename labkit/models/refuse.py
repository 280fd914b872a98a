"""Which models labkit takes, and a reason by name for those it does not.

The techniques of the course replace attention and its cache, so a model must be a decoder in which every
layer runs softmax attention over keys and values through transformers' AttentionInterface.
"""

from __future__ import annotations

from dataclasses import dataclass
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
    if getattr(config, "quantization_config", None) and not packed_here(config):
        return "its weights are already quantised; take the original ones and quantise them here"
    return None


def packed_here(config: Any) -> bool:
    """Whether a checkpoint's weights were packed by labkit (labkit/models/packed_checkpoint.py)."""
    found = getattr(config, "quantization_config", None)
    method = found.get("quant_method") if isinstance(found, dict) else getattr(found, "quant_method", None)
    return method == "labkit"


def refuse_model(model: PreTrainedModel, name: str) -> None:
    """Refuse by what a forward really does: run two tokens on the meta device and look at its attention calls.

    Some architectures accept an attention function and then ignore it, or count on terms that only their own
    has; only a forward shows that. Models whose forward cannot run without data (mixtures of experts route
    by value) are judged by their class.

    Args:
        model: the skeleton, on the meta device.

    Raises:
        LabkitError: some layer does not go through the AttentionInterface, or asks more of it than softmax
            attention over the keys and values of that layer.
    """
    config = model.config.get_text_config(decoder=True)
    calls = _attention_calls(model)
    if calls is None:
        supported = getattr(model, "_supports_attention_backend", False)
        sinks = any("sink" in parameter for parameter, _ in model.named_parameters())
        reason = SINKS if sinks else None if supported else f"its attention does not go {INTERFACE}"
    else:
        reason = _of_calls(calls, config)
    if reason:
        raise LabkitError(f"{name} ({model.config.model_type}) cannot be used: {reason}.", TAKEN)


INTERFACE = "through the interface on which the course's attention is built"
SINKS = "its attention has sinks, learned terms in the softmax that belong to no token"


@dataclass(frozen=True)
class AttentionCall:
    """What one layer asked of attention."""

    layer: int | None
    kv_heads: int
    head_dim: int
    value_dim: int
    window: int | None
    sinks: bool
    bias: bool
    causal: bool


def _of_calls(calls: list[AttentionCall], config: Any) -> str | None:
    """Why these calls of one forward cannot be served by plain softmax attention; None where they can."""
    layers = config.num_hidden_layers
    found = {call.layer for call in calls}
    if len(calls) != layers or found != set(range(layers)):
        known = len(found & set(range(layers)))
        if known == layers:
            return f"it calls attention {len(calls)} times for its {layers} layers"
        return f"{f'only {known}' if known else 'none'} of its {layers} layers go {INTERFACE}"
    if any(call.sinks for call in calls):
        return SINKS
    if any(call.bias for call in calls):
        return "it adds a mask or a bias of its own to the scores"
    if not all(call.causal for call in calls):
        return "its attention looks ahead"
    if any(call.head_dim != call.value_dim for call in calls):
        return "its keys and values differ in width"
    if len({(call.kv_heads, call.head_dim) for call in calls}) > 1:
        return "its layers differ in KV heads or head dimension"
    if any(call.window != _window(config, call.layer) for call in calls):
        return "it does not tell attention about its sliding window"
    return None


def _window(config: Any, layer: int | None) -> int | None:
    """The sliding window that the configuration gives a layer."""
    window = getattr(config, "sliding_window", None) or None
    kinds = getattr(config, "layer_types", None)
    if kinds and layer is not None:
        return window if kinds[layer] == "sliding_attention" else None
    return window if getattr(config, "use_sliding_window", True) else None


def _attention_calls(model: PreTrainedModel) -> list[AttentionCall] | None:
    """Attention calls of one forward; None where the forward cannot run on the meta device."""
    calls: list[AttentionCall] = []

    def note(
        module: Any, query: torch.Tensor, key: Any, value: torch.Tensor, attention_mask: Any, **terms: Any
    ) -> Any:
        """Note what was asked and return an output of the right shape, [1, tokens, heads, dim]."""
        calls.append(
            AttentionCall(
                layer=getattr(module, "layer_idx", None),
                kv_heads=key.shape[1],
                head_dim=key.shape[-1],
                value_dim=value.shape[-1],
                window=terms.get("sliding_window"),
                sinks=terms.get("s_aux") is not None,
                bias=attention_mask is not None or terms.get("position_bias") is not None,
                causal=bool(getattr(module, "is_causal", True)) and terms.get("is_causal") is not False,
            )
        )
        return query.new_empty(query.shape[0], query.shape[2], query.shape[1], value.shape[-1]), None

    AttentionInterface.register("labkit_note", note)
    before = model.config._attn_implementation
    try:
        model.set_attn_implementation("labkit_note")
        model(torch.zeros(1, 2, dtype=torch.long, device="meta"), use_cache=False)
    except (RuntimeError, NotImplementedError, ValueError, TypeError, AttributeError):
        return None
    finally:
        model.config._attn_implementation = before
    return calls
