"""A small random model with the attributes of an LM, for tests that need any model rather than a good one."""

from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte: every character beyond ASCII is split over several tokens."""
    vocab = {piece: index for index, piece in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


@dataclass
class StandIn:
    model: Any
    tokenizer: Any
    name: str
    device: torch.device
    dtype: torch.dtype

    @property
    def config(self) -> Any:
        return self.model.config

    @property
    def weight_bytes(self) -> int:
        return sum(weight.numel() * weight.element_size() for weight in self.model.parameters())

    def encode(self, text: str) -> torch.Tensor:
        return self.tokenizer(text, return_tensors="pt").input_ids.to(self.device)

    def decode(self, ids: Any) -> str:
        return str(self.tokenizer.decode(ids))


def tiny_lm(**changes: Any) -> StandIn:
    """A two-layer Llama over bytes with grouped-query attention."""
    torch.manual_seed(0)
    settings: dict[str, Any] = {
        "vocab_size": 256,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
    }
    model = LlamaForCausalLM(LlamaConfig(**{**settings, **changes})).eval()
    return StandIn(model, byte_tokenizer(), "tiny", torch.device("cpu"), torch.float32)
