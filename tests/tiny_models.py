"""Tiny random models and a byte-level tokenizer, built for tests that need no trained weights."""

from __future__ import annotations

import inspect
import json
from functools import cache
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCAB = 384
END = "<|endoftext|>"


@cache
def tokenizer_json() -> str:
    """A byte-level BPE trained on the source of two standard modules."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB, initial_alphabet=alphabet, special_tokens=[END], show_progress=False
    )
    tokenizer.train_from_iterator([inspect.getsource(json), inspect.getsource(inspect)], trainer)
    return str(tokenizer.to_str())


def tiny_tokenizer(**special: str) -> PreTrainedTokenizerFast:
    """The tokenizer; END ends a text, and starts one too unless bos_token says otherwise."""
    chosen = {"eos_token": END, "bos_token": END, **special}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(tokenizer_json()), **chosen)


def tiny_config(**changes: object) -> LlamaConfig:
    """A grouped-query Llama whose shape is labcoder's in small: 6 query heads over 2 KV heads, tied."""
    settings: dict[str, object] = {
        "vocab_size": VOCAB,
        "hidden_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 80,
        "tie_word_embeddings": True,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-2,  # large enough that forgetting to rescale it shows
        "bos_token_id": 0,
        "eos_token_id": 0,
        **changes,
    }
    return LlamaConfig(**settings)


def tiny_llama(seed: int = 0, dtype: torch.dtype = torch.float32, **changes: object) -> LlamaForCausalLM:
    """A random Llama with logits of a trained model's size, so that tolerances mean something."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(tiny_config(**changes)).to(dtype).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.normal_(
                1.0 if weight.ndim == 1 else 0.0, 0.3 if weight.ndim == 1 else weight.shape[-1] ** -0.5
            )
            if "embed_tokens" in name:
                weight.mul_(4)
    return model


def save(folder: Path, model: LlamaForCausalLM | None = None, **shards: str) -> Path:
    """Write a model and its tokenizer the way save_pretrained does."""
    (tiny_llama() if model is None else model).save_pretrained(folder, **shards)
    tiny_tokenizer().save_pretrained(folder)
    return folder
