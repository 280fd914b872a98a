"""A decoder's dimensions, read from its transformers configuration: no weights are allocated or loaded.

Parameter counts are exact for the families in `FAMILIES`. Another family is read as a Llama and marked
`assumed`, so that a card can say so; where its architecture has another number of parameters, it is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError

from labkit.errors import LabkitError
from labkit.models.fill import skeleton, stored_bytes
from labkit.models.refuse import refuse_config

DENSE = "Give the configuration of a dense decoder-only attention model, such as Llama's."


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
    learned_positions: int | None = (
        None  # rows of its position table beyond the configured ones, if it has one
    )


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
        gated=False, qkv_bias=True, out_bias=True, mlp_bias=True, norm_bias=True, learned_positions=0
    ),
    "gpt_neox": Family(
        gated=False, qkv_bias="attention_bias", out_bias="attention_bias", mlp_bias=True, norm_bias=True
    ),
    "opt": Family(
        gated=False,
        qkv_bias="enable_bias",
        out_bias="enable_bias",
        mlp_bias="enable_bias",
        norm_bias=True,
        learned_positions=2,
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
        LabkitError: another kind of model, named with the reason; or an entry that every decoder has is missing.
    """
    config = _text_config(config)
    kind = str(config.model_type)
    _refuse(config, kind)
    layers, hidden, heads = config.num_hidden_layers, config.hidden_size, config.num_attention_heads
    family = FAMILIES.get(kind, FAMILIES["llama"])
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head_dim = getattr(config, "head_dim", None) or hidden // heads
    widths = (getattr(config, name, None) for name in ("intermediate_size", "n_inner", "ffn_dim"))
    intermediate = next((width for width in widths if width), 4 * hidden)
    qk_norm = {"": 0, "head": 2 * head_dim, "full": (heads + kv_heads) * head_dim}[family.qk_norm]
    norm = hidden * (2 if family.norm_bias else 1)
    shape = Shape(
        family=kind,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=intermediate,
        vocab=config.vocab_size,
        tied=bool(getattr(config, "tie_word_embeddings", False)),
        gated=family.gated,
        biases=layers * _biases(family, config, hidden, (heads + 2 * kv_heads) * head_dim, intermediate),
        norms=layers * (family.norms * norm + qk_norm) + norm,
        positions=(
            0
            if family.learned_positions is None
            else config.max_position_embeddings + family.learned_positions
        ),
        windows=_windows(config, layers),
        assumed=kind not in FAMILIES,
    )
    if shape.assumed:
        _check_assumed(shape, config)
    return shape


def _refuse(config: Any, kind: str) -> None:
    """Refuse experts, layers that differ from each other, and entries that are missing."""
    entries = config.to_dict()
    blocks = [entries, *(block for block in entries.values() if isinstance(block, dict))]
    if any(_of_experts(str(key)) and value for block in blocks for key, value in block.items()):
        raise LabkitError(
            f"{kind} routes tokens to experts, so no single number is its cost per token.", DENSE
        )
    needed = ["num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size"]
    if kind not in FAMILIES:
        needed.append("intermediate_size")
    for name in (*needed, "head_dim", "num_key_value_heads"):
        try:
            found = getattr(config, name, None)
        except RuntimeError:  # how transformers says that it has a value for each layer
            found = ()
        if not isinstance(found, int) and (name in needed or found is not None):
            raise LabkitError(
                f"The configuration of {kind} has no single {name}, so its cost cannot be computed.", DENSE
            )
    # only some sizes of OPT have it: tables narrower than the layers, with a projection between them
    if getattr(config, "word_embed_proj_dim", config.hidden_size) != config.hidden_size:
        raise LabkitError(f"This {kind} embeds tokens in another width than its layers have.", DENSE)


def _of_experts(key: str) -> bool:
    """Whether only a mixture of experts has a value under this entry."""
    return key.endswith("experts") or key == "moe_intermediate_size"


def _check_assumed(shape: Shape, config: Any) -> None:
    """Refuse an unknown family whose number of parameters is not that of a Llama of these dimensions."""
    try:
        real = stored_bytes(skeleton(config, torch.float32)) // 4
    except Exception as error:  # a model class may trip over its settings in any way
        raise LabkitError(
            f"No {shape.family} can be built from this configuration: {error}.", DENSE
        ) from error
    if abs(shape.parameters / real - 1) > 0.01:
        raise LabkitError(
            f"{shape.family} is not built as a Llama is: it has {real:,} parameters, and a Llama of its "
            f"dimensions would have {shape.parameters:,}.",
            DENSE,
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
        except (TypeError, ValueError, StrictDataclassError) as error:
            raise LabkitError(
                f"This dictionary is no model configuration: {error}", "Give the content of a config.json."
            ) from None
    if not (hasattr(config, "model_type") and hasattr(config, "get_text_config")):
        raise LabkitError(
            f"A {type(config).__name__} is no model configuration.",
            "Give a transformers configuration, its dictionary, a model or an LM.",
        )
    refuse_config(config, getattr(config, "name_or_path", "") or "This")
    return config.get_text_config(decoder=True)


def _windows(config: Any, layers: int) -> tuple[int | None, ...]:
    """A layer's sliding window, by its own type where the configuration lists types, else for all alike."""
    window = getattr(config, "sliding_window", None)
    if not window or getattr(config, "use_sliding_window", True) is False:
        return (None,) * layers
    types = getattr(config, "layer_types", None)
    if types is None:
        return (int(window),) * layers
    return tuple(int(window) if kind == "sliding_attention" else None for kind in types)
