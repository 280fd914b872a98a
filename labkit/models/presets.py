"""Full-size shapes that labcoder can be inflated to."""

from __future__ import annotations

import copy
from dataclasses import dataclass

from transformers import LlamaConfig

POSITIONS = 16_384
"""Every inflated model may be run this far; rotary positions need no table."""


@dataclass(frozen=True)
class Shape:
    """The dimensions of a Llama, without its vocabulary.

    Args:
        like: the published model that has this shape.
        hidden: width of the residual stream.
        layers: decoder layers.
        heads: query heads.
        kv_heads: key/value heads; `heads / kv_heads` query heads share one.
        head_dim: width of one head.
        intermediate: neurons of one MLP.
        tied: whether the embedding doubles as the last projection.
    """

    like: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    tied: bool

    def parameters(self, vocab: int) -> int:
        """How many weights this shape has with `vocab` tokens."""
        attention = 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
        mlp = 3 * self.hidden * self.intermediate
        layer = attention + mlp + 2 * self.hidden
        embeddings = vocab * self.hidden * (1 if self.tied else 2)
        return self.layers * layer + self.hidden + embeddings


PRESETS: dict[str, Shape] = {
    "1b": Shape("Llama-3.2-1B", 2048, 16, 32, 8, 64, 8192, tied=True),
    "7b": Shape("Llama-2-7B", 4096, 32, 32, 32, 128, 11008, tied=False),
    "8b": Shape("Llama-3-8B", 4096, 32, 32, 8, 128, 14336, tied=False),
}
"""What stands after the @ in labcoder@7b."""


def inflated_config(small: LlamaConfig, shape: Shape) -> LlamaConfig:
    """A configuration of `shape` that keeps the vocabulary, special tokens and rotary base of `small`."""
    config = copy.deepcopy(small)
    config.hidden_size = shape.hidden
    config.num_hidden_layers = shape.layers
    config.num_attention_heads = shape.heads
    config.num_key_value_heads = shape.kv_heads
    config.head_dim = shape.head_dim
    config.intermediate_size = shape.intermediate
    config.tie_word_embeddings = shape.tied
    # the spread at which a random matrix keeps the size of what it multiplies, for any width
    config.initializer_range = shape.hidden**-0.5
    config.max_position_embeddings = max(POSITIONS, small.max_position_embeddings)
    return config
