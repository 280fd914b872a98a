"""Really smaller matrices: heads and neurons cut out of a model, which stays a plain transformers model.

A configuration holds one number of heads and one of neurons for all layers, so every layer keeps as many; which
ones is each layer's own choice. The head dimension stays, since the rotary positions are made for it.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor
from transformers import PreTrainedModel
from transformers.initialization import no_init_weights

from labkit.compress.prune.gates import gated, masks
from labkit.compress.prune.importance import Importance
from labkit.compress.prune.units import Units, check_kept, cut_of, units
from labkit.errors import LabkitError
from labkit.models import LM

PROBE = 24
"""Tokens on which a smaller model is compared with the gated original."""

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3, torch.float16: 3e-2, torch.bfloat16: 1e-1}
"""Largest difference of logits, as a share of their largest size."""


@dataclass(frozen=True)
class Counts:
    """Units of every layer of a smaller model.

    Args:
        heads: query heads.
        kv_heads: KV heads; heads / kv_heads query heads share one.
        neurons: of an MLP.
        removed: share of the weights in heads and neurons that goes, 0 to 1.
    """

    heads: int
    kv_heads: int
    neurons: int
    removed: float


def counts(lm: LM, share: float, *, remove: str | None = None, multiple: int = 16) -> Counts:
    """How many heads and neurons are left when a share of their weights goes.

    The heads come first: the number nearest to 1 - share of them that a configuration can hold (Llama and Gemma 2/3
    want the hidden size to be a multiple of it). Neurons make up the rest of the share.

    Args:
        share: of the weights in heads and neurons, 0 to 1.
        remove: "queries" takes query heads from every KV head; "groups" takes KV heads with their query heads.
            None means queries where KV heads have several.
        multiple: neurons are a multiple of this, for the sake of matrix products.

    Raises:
        LabkitError: the share is out of range, or `remove` cannot be done on this model.
    """
    found = units(lm)
    chosen = remove or ("queries" if found.group > 1 else "groups")
    if not 0 <= share < 1 or multiple < 1:
        raise LabkitError(f"A share of {share} cannot be removed.", "Give 0 ≤ share < 1 and multiple ≥ 1.")
    if chosen not in ("queries", "groups") or (chosen == "queries" and found.group == 1):
        raise LabkitError(
            f"{lm.name} cannot lose {chosen!r}.",
            'Use "groups", or "queries" where several query heads share a KV head.',
        )
    if chosen == "queries":
        pairs = [(each * found.kv_heads, found.kv_heads) for each in range(1, found.group + 1)]
    else:
        pairs = [(found.group * each, each) for each in range(1, found.kv_heads + 1)]
    possible = [pair for pair in pairs if _config(lm.model, *pair, found) is not None]
    wanted = (1 - share) * found.heads
    heads, kv_heads = min(possible, key=lambda pair: (abs(pair[0] - wanted), -pair[0]))
    whole = found.weights(found.heads, found.kv_heads, found.neurons)
    left = (1 - share) * whole - found.weights(heads, kv_heads, 0)
    rounded = round(left / (3 * found.hidden) / multiple) * multiple
    neurons = min(max(rounded, min(multiple, found.neurons)), found.neurons)
    if share == 0:
        neurons = found.neurons  # whatever it is a multiple of
    removed = 1 - found.weights(heads, kv_heads, neurons) / whole
    return Counts(heads, kv_heads, neurons, removed)


def choose(scores: Importance, keep: Counts) -> tuple[Tensor, Tensor]:
    """The most important units of each layer: heads [layers, kept] and neurons [layers, kept], sorted.

    KV heads are chosen first, by the importance of their groups, then query heads within each of them.

    Raises:
        LabkitError: more units are to be kept than there are.
    """
    layers, total = scores.heads.shape
    group = total // scores.groups.shape[1]
    each = keep.heads // keep.kv_heads
    if keep.kv_heads > scores.groups.shape[1] or each > group or keep.neurons > scores.neurons.shape[1]:
        raise LabkitError("More units are to be kept than the model has.", "Take counts of the same model.")
    groups = scores.groups.topk(keep.kv_heads).indices.sort(-1).values
    by_group = scores.heads.unflatten(-1, (-1, group))
    within = by_group.gather(1, groups[..., None].expand(-1, -1, group)).topk(each).indices
    heads = (groups[..., None] * group + within).flatten(1).sort(-1).values
    return heads, scores.neurons.topk(keep.neurons).indices.sort(-1).values


@torch.no_grad()
def shrink(lm: LM, heads: Tensor, neurons: Tensor) -> LM:
    """A smaller model of the same class that computes what `lm` does with all other units at zero.

    That is tested on a few random tokens. The new model shares no memory with the old one.

    Args:
        heads: LongTensor [layers, kept], indices of the query heads to keep; KV heads that none of them reads go.
        neurons: LongTensor [layers, kept].

    Returns:
        The new LM; save_pretrained and labkit.load take it, as do the engine and the fused kernels.

    Raises:
        LabkitError: the units are uneven, the configuration cannot hold them, or the test fails.
    """
    found = units(lm)
    heads, neurons = check_kept(found, heads, neurons)
    kv_heads = len((heads[0] // found.group).unique())
    config = _config(lm.model, heads.shape[1], kv_heads, found, neurons.shape[1])
    if config is None:
        raise LabkitError(
            f"A {type(lm.model.config).__name__} cannot hold {heads.shape[1]} query heads over {kv_heads} KV heads.",
            f"Take the number that counts(lm, share) finds: heads must divide {found.hidden} here.",
        )
    model = _build(lm, config)
    cut = cut_of(found, heads, neurons)
    target = model.state_dict()
    for name, weight in lm.model.state_dict().items():
        rows, columns = cut.get(name.rpartition(".")[0], (None, None))
        if name.endswith(".bias"):
            columns = None
        target[name].copy_(_take(weight, rows, columns))
    small = LM(model, lm.tokenizer, f"{lm.name} (pruned)", lm.device, lm.dtype)
    _check(lm, small, found, heads, neurons)
    return small


def _take(weight: Tensor, rows: Tensor | None, columns: Tensor | None) -> Tensor:
    if rows is not None:
        weight = weight.index_select(0, rows.to(weight.device))
    return weight if columns is None else weight.index_select(1, columns.to(weight.device))


def _config(model: Any, heads: int, kv_heads: int, found: Units, neurons: int | None = None) -> Any:
    """The configuration with fewer units, or None where its class refuses it, as it would on loading."""
    settings = {
        **model.config.to_dict(),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": found.head_dim,
        "intermediate_size": found.neurons if neurons is None else neurons,
    }
    try:
        return type(model.config).from_dict(settings)
    except (StrictDataclassError, ValueError, TypeError):
        return None


def _build(lm: LM, config: Any) -> PreTrainedModel:
    """A model of that configuration, on the device, with the rotary frequencies of the old one."""
    cls: Any = type(lm.model)
    config._attn_implementation = lm.model.config._attn_implementation
    with torch.device(lm.device), no_init_weights():
        model: PreTrainedModel = cls._from_config(config, dtype=lm.dtype)
    model.tie_weights()
    stored, old = model.state_dict(), dict(lm.model.named_buffers())
    for name, buffer in model.named_buffers():
        if name not in stored:  # made by code, perhaps on another device
            buffer.copy_(old[name])
    model.generation_config = copy.deepcopy(lm.model.generation_config)
    return model.eval()


def _check(lm: LM, small: LM, found: Units, heads: Tensor, neurons: Tensor) -> None:
    """Compare with the gated original."""
    ids = torch.randint(lm.config.vocab_size, (1, PROBE), generator=torch.Generator().manual_seed(0)).to(
        lm.device
    )
    training = lm.model.training
    lm.model.eval()
    try:
        with gated(lm.model, found, *masks(found, heads, neurons, lm.device)):
            wanted = lm.model(ids, use_cache=False).logits
    finally:
        lm.model.train(training)
    got = small.model(ids, use_cache=False).logits
    error = ((got - wanted).abs().max() / wanted.abs().max()).item()
    if not error <= TOLERANCE.get(lm.dtype, 1e-3):
        raise LabkitError(
            f"The smaller {lm.name} differs from the gated original by {error:.1e} of its logits.",
            "Its layers use heads or neurons in a way that labkit does not know; prune another model.",
        )
