"""A decoder's dimensions, read from its transformers configuration alone: nothing is built, nothing loaded.

Parameter counts are exact for the families in `FAMILIES`; another family is read as a Llama and marked
`assumed`, so that a card can say so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from labkit.errors import LabkitError


@dataclass(frozen=True)
class Family:
    """What a configuration does not spell out: which biases and norms this family's layers have.

    A bias field is True, False, or the name of the configuration entry that decides it.
    """

    gated: bool = True
    qkv_bias: bool | str = False
    out_bias: bool | str = False
    mlp_bias: bool | str = False
    norms: int = 2  # of the residual width, in each layer
    norm_bias: bool = False  # LayerNorm has a bias, RMSNorm none
    qk_norm: str = ""  # "head": one weight a head dimension; "full": one a channel of q and of k
    learned_positions: bool = False


FAMILIES: dict[str, Family] = {
    "llama": Family(qkv_bias="attention_bias", out_bias="attention_bias", mlp_bias="mlp_bias"),
    "mistral": Family(),
    "qwen2": Family(qkv_bias=True),
    "qwen3": Family(qkv_bias="attention_bias", out_bias="attention_bias", qk_norm="head"),
    "gemma2": Family(qkv_bias="attention_bias", out_bias="attention_bias", norms=4),
    "gemma3_text": Family(qkv_bias="attention_bias", out_bias="attention_bias", norms=4, qk_norm="head"),
    "phi3": Family(),
    "olmo2": Family(qkv_bias="attention_bias", out_bias="attention_bias", qk_norm="full"),
    "gpt2": Family(
        gated=False, qkv_bias=True, out_bias=True, mlp_bias=True, norm_bias=True, learned_positions=True
    ),
}


@dataclass(frozen=True)
class Shape:
    """Dimensions of a decoder. `windows` has one entry a layer: its sliding window in tokens, or None."""

    family: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tied: bool
    gated: bool
    biases: int
    norms: int
    positions: int
    windows: tuple[int | None, ...]
    assumed: bool

    @property
    def attention_matrix(self) -> int:
        """Elements of q, k, v and o projections of a layer, without biases."""
        return 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)

    @property
    def mlp_matrix(self) -> int:
        """Elements of a layer's MLP matrices: gate, up and down, or up and down."""
        return (3 if self.gated else 2) * self.hidden * self.intermediate

    @property
    def body_matrix(self) -> int:
        """Elements that every token is multiplied with in the layers (the last projection not among them)."""
        return self.layers * (self.attention_matrix + self.mlp_matrix)

    @property
    def head_matrix(self) -> int:
        """Elements of the last projection, hidden width to vocabulary."""
        return self.vocab * self.hidden

    @property
    def embedding(self) -> int:
        """Elements of the input table(s), of which a token reads a row: token embeddings and positions."""
        return (self.vocab + self.positions) * self.hidden

    @property
    def looked_up(self) -> int:
        """Elements that are stored but not streamed in a step: input tables that no projection reads."""
        return self.embedding - (self.head_matrix if self.tied else 0)

    @property
    def parameters(self) -> int:
        """All stored elements; a tied table is counted once."""
        head = 0 if self.tied else self.head_matrix
        return self.embedding + self.body_matrix + self.biases + self.norms + head


def shape_of(config: Any) -> Shape:
    """Read a transformers configuration (or its dictionary) of a decoder-only attention model.

    Raises:
        LabkitError: an entry that every decoder has is missing, or tokens are routed to experts.
    """
    config = _text_config(config)
    kind = str(config.model_type)
    if getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None):
        raise LabkitError(
            f"{kind} routes tokens to experts, so no single number is its cost per token.",
            "Give the configuration of a dense decoder.",
        )
    try:
        layers, hidden, heads = config.num_hidden_layers, config.hidden_size, config.num_attention_heads
        vocab = config.vocab_size
    except AttributeError as error:
        raise LabkitError(
            f"The configuration of {kind} has no {error.name}, so its cost cannot be computed.",
            "Give the configuration of a decoder-only attention model.",
        ) from None
    family = FAMILIES.get(kind, FAMILIES["llama"])
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head_dim = getattr(config, "head_dim", None) or hidden // heads
    intermediate = (
        getattr(config, "intermediate_size", None) or getattr(config, "n_inner", None) or 4 * hidden
    )
    qk_norm = {"": 0, "head": 2 * head_dim, "full": (heads + kv_heads) * head_dim}[family.qk_norm]
    norm = hidden * (2 if family.norm_bias else 1)
    return Shape(
        family=kind,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=intermediate,
        vocab=vocab,
        tied=bool(getattr(config, "tie_word_embeddings", False)),
        gated=family.gated,
        biases=layers * _biases(family, config, hidden, (heads + 2 * kv_heads) * head_dim, intermediate),
        norms=layers * (family.norms * norm + qk_norm) + norm,
        positions=config.max_position_embeddings if family.learned_positions else 0,
        windows=_windows(config, layers),
        assumed=kind not in FAMILIES,
    )


def _biases(family: Family, config: Any, hidden: int, qkv: int, intermediate: int) -> int:
    """Bias elements of one layer."""

    def has(bias: bool | str) -> bool:
        return bool(getattr(config, bias, False)) if isinstance(bias, str) else bias

    attention = has(family.qkv_bias) * qkv + has(family.out_bias) * hidden
    return attention + has(family.mlp_bias) * ((2 if family.gated else 1) * intermediate + hidden)


def _text_config(config: Any) -> Any:
    if isinstance(config, dict):
        from transformers import AutoConfig

        try:
            config = AutoConfig.for_model(**config)
        except (TypeError, ValueError) as error:
            raise LabkitError(
                f"This dictionary is no model configuration: {error}", "Give the content of a config.json."
            ) from None
    if hasattr(config, "get_text_config"):
        config = config.get_text_config(decoder=True)
    if not hasattr(config, "model_type"):
        raise LabkitError(
            f"A {type(config).__name__} is no model configuration.",
            "Give a transformers configuration, its dictionary, a model or an LM.",
        )
    return config


def _windows(config: Any, layers: int) -> tuple[int | None, ...]:
    """A layer's sliding window, by its own type where the configuration lists types, else for all alike."""
    window = getattr(config, "sliding_window", None)
    if not window or getattr(config, "use_sliding_window", True) is False:
        return (None,) * layers
    types = getattr(config, "layer_types", None)
    if types is None:
        return (int(window),) * layers
    return tuple(int(window) if kind == "sliding_attention" else None for kind in types)
