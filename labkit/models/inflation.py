"""Inflation: a small Llama in a full-size body that computes the same function.

The inflated model costs what its shape costs and says what the small one says. Nothing is approximated:

- *Residual stream* d → D. Embedding columns and the rows of `o_proj` and `down_proj` for the new dimensions
  are empty, so those dimensions stay empty. RMSNorm now averages over D: its weight is multiplied by
  sqrt(d/D) and its eps by d/D, which gives the small norm exactly.
- *Heads*. Each small query head moves into a big one whose KV head holds a copy of the KV head it reads.
  Heads without a tenant get empty `o_proj` columns.
- *Head dimension* h → r·h. Rotary frequency j of the small head is frequency r·j of the big one, so pair j
  moves to pair r·j; `q` is multiplied by sqrt(r), since attention now divides by sqrt(r·h).
- *MLP*. New neurons get empty `down_proj` columns.
- *Layers*. New layers get empty `o_proj` and `down_proj`: the identity, at full cost.

"Empty" is random times 2^-40, not zero: multiplying zeros draws less power, so a chip full of zeros clocks
higher and would flatter every benchmark. Real weights stand first in every dimension, so a quantisation
group of 128 never mixes them with full-size random ones.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from labkit.errors import LabkitError
from labkit.models.fill import materialise


def emptiness(dtype: torch.dtype) -> float:
    """The factor that makes a weight empty. float16 underflows at 2^-24, so there it is 2^-16."""
    return 2.0**-16 if dtype == torch.float16 else 2.0**-40


@dataclass(frozen=True)
class HeadMap:
    """Where the small heads live in the big ones.

    Args:
        queries: for each small query head, its big query head.
        keys: pairs (big KV head, small KV head whose copy it holds).
        head_dim, big_head_dim: h and r·h.
    """

    queries: tuple[int, ...]
    keys: tuple[tuple[int, int], ...]
    head_dim: int
    big_head_dim: int

    @staticmethod
    def of(small: Any, big: Any) -> HeadMap:
        """Give every group of small query heads as many big KV heads as it needs, in order.

        Raises:
            LabkitError: the big model has too few KV heads.
        """
        group = small.num_attention_heads // small.num_key_value_heads
        big_group = big.num_attention_heads // big.num_key_value_heads
        queries: list[int] = []
        keys: list[tuple[int, int]] = []
        for head in range(small.num_attention_heads):
            source, member = divmod(head, group)
            if member % big_group == 0:
                keys.append((len(keys), source))
            queries.append((len(keys) - 1) * big_group + member % big_group)
        if len(keys) > big.num_key_value_heads:
            raise LabkitError(
                f"{small.num_attention_heads} query heads over {small.num_key_value_heads} KV heads need "
                f"{len(keys)} KV heads of {big_group} queries each; the shape has {big.num_key_value_heads}.",
                "Give the shape more KV heads, or more query heads for each.",
            )
        return HeadMap(tuple(queries), tuple(keys), small.head_dim, big.head_dim)

    @property
    def rotary(self) -> torch.Tensor:
        """LongTensor [h]: the place of each small q/k dimension in a big head. A pair is (j, j + h/2)."""
        first = torch.arange(self.head_dim // 2) * (self.big_head_dim // self.head_dim)
        return torch.cat([first, first + self.big_head_dim // 2])

    def rows(self, heads: list[int], within: torch.Tensor) -> torch.Tensor:
        """Indices into the stacked big heads: `within` of each of `heads`, concatenated."""
        return (torch.tensor(heads)[:, None] * self.big_head_dim + within).reshape(-1)


@torch.no_grad()
def inflate(
    small_model: PreTrainedModel,
    big_config: LlamaConfig,
    *,
    device: torch.device | str,
    dtype: torch.dtype,
    seed: int = 0,
    random_weights: bool = False,
) -> PreTrainedModel:
    """Build `big_config` on `device` so that its logits are those of `small_model`.

    Args:
        small_model: a LlamaForCausalLM without biases, anywhere and in any dtype.
        big_config: the full-size shape (see `inflated_config`); its rms_norm_eps is adjusted here.
        device, dtype: where and as what the big model is built; it is never held elsewhere.
        seed: of the random filling.
        random_weights: skip the inflation and leave every weight random: the control which shows
            that the speed of an inflated model does not come from its empty weights.

    Raises:
        LabkitError: the small model cannot be placed in that shape.
    """
    config = copy.deepcopy(big_config)
    small = _inflatable(small_model, config)
    config.rms_norm_eps = small.rms_norm_eps * small.hidden_size / config.hidden_size
    big = materialise(config, device=torch.device(device), dtype=dtype, seed=seed)
    if random_weights:
        return big
    heads = HeadMap.of(small, config)
    empty = emptiness(dtype)
    source = {name: weight.detach() for name, weight in small_model.state_dict().items()}
    source["lm_head.weight"] = small_model.get_output_embeddings().weight.detach()
    _copy_rotary(small_model, big)
    for name, weight in big.named_parameters():
        _inflate_weight(name, weight, source.get(name), heads, small.hidden_size / config.hidden_size, empty)
    return big


def _copy_rotary(small: Any, big: Any) -> None:
    """Take the small model's rotary frequencies bit for bit.

    They are equal by definition, but a GPU's pow and a CPU's differ in the last bit, and at position 16k
    that bit is a visible angle.
    """
    step = big.config.head_dim // small.config.head_dim
    for name in ("inv_freq", "original_inv_freq"):
        getattr(big.model.rotary_emb, name)[::step] = getattr(small.model.rotary_emb, name)


def _inflate_weight(
    name: str, weight: torch.Tensor, source: torch.Tensor | None, heads: HeadMap, ratio: float, empty: float
) -> None:
    """Turn one random weight of the big model, in place, into its inflated form.

    Args:
        source: the small model's weight of that name; None in an added layer.
        ratio: d/D.
    """
    kind = name.split(".")[-2]
    if kind in ("embed_tokens", "lm_head", "o_proj", "down_proj"):
        weight.mul_(empty)
    if source is None:
        return
    block = source.to(weight.device, torch.promote_types(weight.dtype, torch.float32))
    if block.ndim == 1:
        weight[: len(block)] = (block * ratio**0.5).to(weight.dtype)
        return
    rows, columns = (torch.arange(size) for size in block.shape)
    contiguous = torch.arange(heads.head_dim)
    if kind == "q_proj":
        taken = list(heads.queries)
        weight[heads.rows(taken, torch.arange(heads.big_head_dim)).to(weight.device)] *= empty
        rows = heads.rows(taken, heads.rotary)
        block = block * (heads.big_head_dim / heads.head_dim) ** 0.5
    elif kind in ("k_proj", "v_proj"):
        holders, held = ([pair[side] for pair in heads.keys] for side in (0, 1))
        rows = heads.rows(holders, heads.rotary if kind == "k_proj" else contiguous)
        by_head = block.unflatten(0, (-1, heads.head_dim))
        block = by_head[torch.tensor(held, device=block.device)].flatten(0, 1)
    elif kind == "o_proj":
        columns = heads.rows(list(heads.queries), contiguous)
    weight[rows[:, None].to(weight.device), columns.to(weight.device)] = block.to(weight.dtype)


def _inflatable(model: PreTrainedModel, big: Any) -> Any:
    """The small model's configuration, once it is certain that it fits into `big`."""
    small: Any = model.config
    if not isinstance(model, LlamaForCausalLM) or small.attention_bias or small.mlp_bias:
        raise LabkitError(
            f"{type(model).__name__} cannot be inflated.",
            "Inflation takes a LlamaForCausalLM without biases.",
        )
    same = ("vocab_size", "hidden_act", "rope_parameters", "attention_bias", "mlp_bias")
    grown = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "head_dim")
    wrong = [key for key in same if getattr(small, key) != getattr(big, key)]
    wrong += [key for key in grown if getattr(small, key) > getattr(big, key)]
    wrong += ["head_dim"] if big.head_dim % small.head_dim else []
    wrong += ["tie_word_embeddings"] if big.tie_word_embeddings and not small.tie_word_embeddings else []
    wrong += ["rope_parameters"] if small.rope_parameters["rope_type"] != "default" else []
    if wrong:
        changes = {key: f"{key} {getattr(small, key)} → {getattr(big, key)}" for key in wrong}
        raise LabkitError(
            f"The small model does not fit into that shape: {', '.join(changes.values())}.",
            "Widths and counts may only grow, head_dim by a whole factor; the vocabulary and rope stay.",
        )
    HeadMap.of(small, big)
    return small
