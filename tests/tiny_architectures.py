"""Tiny random models of many architectures, in fp64, and the least that their packed forward needs of a cache."""

from dataclasses import dataclass

import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from labkit.kernels.layout import Layout

VOCAB = 97
SMALL = {
    "vocab_size": VOCAB, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": 0,
    "eos_token_id": 0,
}  # fmt: skip
WINDOW = {"sliding_window": 7}
MODELS = {
    "llama": ("llama", {}),
    "qwen2": ("qwen2", {}),
    "qwen2 window": ("qwen2", {"use_sliding_window": True, "max_window_layers": 2, **WINDOW}),
    "qwen3": ("qwen3", {}),
    "mistral window": ("mistral", WINDOW),
    "gemma2": ("gemma2", {"query_pre_attn_scalar": 5, "attn_logit_softcapping": 2.0, **WINDOW}),
    "gemma3": ("gemma3_text", {"query_pre_attn_scalar": 5, "sliding_window_pattern": 2, **WINDOW}),
    "phi3": ("phi3", {"num_attention_heads": 6, "head_dim": None}),
    "phi3 window": ("phi3", {"head_dim": None, **WINDOW}),
    "olmo2": ("olmo2", {"head_dim": None}),
    "gpt2": ("gpt2", {"n_inner": 64, "num_key_value_heads": None, "scale_attn_by_inverse_layer_idx": True}),
}  # fmt: skip


def build(name, dtype=torch.float64):
    kind, changes = MODELS[name]
    settings = {key: value for key, value in {**SMALL, **changes}.items() if value is not None}
    torch.manual_seed(len(name))
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[kind](**settings), attn_implementation="eager")
    with torch.no_grad():
        for weight in model.parameters():  # large enough that attention is far from uniform
            weight.normal_(
                1.0 if weight.ndim == 1 else 0.0, 0.3 if weight.ndim == 1 else 1.5 * weight.shape[-1] ** -0.5
            )
    return model.to(dtype).eval()


@dataclass
class Store:
    """The least that the model's forward needs of a cache."""

    layout: Layout
    layers: list | None

    def pages(self, layer):
        return None if self.layers is None else self.layers[layer]
