"""What of a model can be taken out whole: query heads, KV heads and MLP neurons, and where their weights are.

Taking out a unit means: no rows in the projections that compute it, no column in the projection that reads it. The
families Llama, Qwen2/3, Mistral, Gemma and Phi-3 name these projections alike, apart or merged. Everything in a
layer's attention and MLP must be accounted for, else the model is refused: a norm over all heads together, say,
would change for the heads that stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from labkit.cache.attention import STATE as ATTENTION_STATE
from labkit.errors import LabkitError
from labkit.models import LM

FUSE_STATE = "_labkit_fuse"  # set by labkit.fuse, a room above this one
FAMILIES = "Structured pruning takes Llama, Qwen2/3, Mistral, Gemma, Phi-3 and what is laid out like them."


@dataclass(frozen=True)
class Block:
    """Rows of a projection that belong to one kind of unit.

    Args:
        linear: the module's name in the model.
        kind: "queries", "keys" (keys or values of KV heads) or "neurons".
        start: the first row.
    """

    linear: str
    kind: str
    start: int = 0


@dataclass(frozen=True)
class Layer:
    """One decoder layer.

    Args:
        rows: the blocks of the projections that compute units.
        out: name of the projection whose columns read the query heads.
        down: name of the projection whose columns read the neurons.
    """

    rows: tuple[Block, ...]
    out: str
    down: str


@dataclass(frozen=True)
class Units:
    """How many units every layer has, and where.

    Args:
        heads: query heads.
        kv_heads: KV heads, each read by heads / kv_heads query heads.
        head_dim: width of a head.
        neurons: of an MLP.
        hidden: width of the residual stream.
    """

    layers: tuple[Layer, ...]
    heads: int
    kv_heads: int
    head_dim: int
    neurons: int
    hidden: int

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.heads // self.kv_heads

    def weights(self, heads: int, kv_heads: int, neurons: int) -> int:
        """Weights of one layer's projections with that many units, without biases."""
        return self.hidden * (2 * self.head_dim * (heads + kv_heads) + 3 * neurons)

    def width(self, kind: str) -> int:
        """Rows of all units of a kind in one projection."""
        widths = {
            "queries": self.heads * self.head_dim,
            "keys": self.kv_heads * self.head_dim,
            "neurons": self.neurons,
        }
        return widths[kind]


def units(lm: LM) -> Units:
    """Find the units of a model.

    Raises:
        LabkitError: its layers are laid out otherwise, are quantised, or differ from one another.
    """
    check_plain(lm)
    config = lm.config
    heads = int(config.num_attention_heads)
    kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
    head_dim = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
    neurons = getattr(config, "intermediate_size", None)
    names = {id(module): name for name, module in lm.model.named_modules()}
    decoder = lm.model.get_decoder()
    layers = list(getattr(decoder, "layers", None) or ())
    if config is not lm.model.config:
        raise _unfit(lm, "its text model is a part of another one")
    if not layers or neurons is None or len(layers) != config.num_hidden_layers:
        raise _unfit(lm, "its decoder has no list of layers with an attention and a gated MLP")
    found = Units((), heads, kv_heads, head_dim, int(neurons), int(config.hidden_size))
    parts = tuple(_layer(lm, layer, names[id(layer)], found) for layer in layers)
    return Units(parts, heads, kv_heads, head_dim, int(neurons), int(config.hidden_size))


def check_plain(lm: LM) -> None:
    """Refuse a model whose weights or attention someone else has in use.

    Raises:
        LabkitError: fused kernels are applied to it, or an engine has its attention.
    """
    if getattr(lm.model, FUSE_STATE, None) is not None:
        raise LabkitError(
            f"{lm.name} has fused kernels, which hold its weights together.", "Call fuse.remove(lm) first."
        )
    if getattr(lm.model, ATTENTION_STATE, None) is not None:
        raise LabkitError(f"An engine has the attention of {lm.name} installed.", "Close the engine first.")


def _layer(lm: LM, layer: nn.Module, name: str, sizes: Units) -> Layer:
    attention, mlp = getattr(layer, "self_attn", None), getattr(layer, "mlp", None)
    rows, known = [], []
    for module, where, choices in (
        (attention, f"{name}.self_attn", ATTENTION_ROWS),
        (mlp, f"{name}.mlp", MLP_ROWS),
    ):
        chosen = next((each for each in choices if all(hasattr(module, key) for key in each)), None)
        reader = "o_proj" if choices is ATTENTION_ROWS else "down_proj"
        if module is None or chosen is None or not hasattr(module, reader):
            raise _unfit(lm, f"{where} has none of the projections {_spelled(choices)} with {reader}")
        for key, kinds in chosen.items():
            blocks = list(_blocks(f"{where}.{key}", kinds, sizes))
            height = sum(sizes.width(kind) for kind in kinds)
            _check_linear(lm, f"{where}.{key}", getattr(module, key), (height, sizes.hidden))
            rows += blocks
        width = sizes.width("queries" if choices is ATTENTION_ROWS else "neurons")
        _check_linear(lm, f"{where}.{reader}", getattr(module, reader), (sizes.hidden, width))
        known += [f"{where}.{key}" for key in (*chosen, reader)]
    _check_rest(lm, layer, name, known, sizes)
    return Layer(tuple(rows), f"{name}.self_attn.o_proj", f"{name}.mlp.down_proj")


ATTENTION_ROWS: tuple[dict[str, tuple[str, ...]], ...] = (
    {"q_proj": ("queries",), "k_proj": ("keys",), "v_proj": ("keys",)},
    {"qkv_proj": ("queries", "keys", "keys")},
)
MLP_ROWS: tuple[dict[str, tuple[str, ...]], ...] = (
    {"gate_proj": ("neurons",), "up_proj": ("neurons",)},
    {"gate_up_proj": ("neurons", "neurons")},
)
"""Projections by name, and the kinds of units whose rows each holds, in order."""


def _blocks(linear: str, kinds: Sequence[str], sizes: Units) -> Iterator[Block]:
    start = 0
    for kind in kinds:
        yield Block(linear, kind, start)
        start += sizes.width(kind)


def _check_linear(lm: LM, name: str, module: Any, shape: tuple[int, int]) -> None:
    if type(module) is not nn.Linear:
        raise _unfit(lm, f"{name} is a {type(module).__name__}; prune before quantising or adapting")
    if tuple(module.weight.shape) != shape:
        raise _unfit(lm, f"{name} is {tuple(module.weight.shape)}, its configuration says {shape}")


def _check_rest(lm: LM, layer: nn.Module, name: str, known: list[str], sizes: Units) -> None:
    """Refuse weights of attention and MLP that belong to nothing known; norms of single heads may stay."""
    for key, weight in layer.named_parameters():
        full = f"{name}.{key}"
        inside = key.startswith(("self_attn.", "mlp."))
        if inside and full.rpartition(".")[0] not in known and tuple(weight.shape) != (sizes.head_dim,):
            raise _unfit(lm, f"{full} {tuple(weight.shape)} may depend on all heads or neurons together")


def _spelled(choices: Sequence[dict[str, Any]]) -> str:
    return " or ".join(", ".join(each) for each in choices)


def _unfit(lm: LM, reason: str) -> LabkitError:
    return LabkitError(
        f"{lm.name} ({lm.config.model_type}) cannot lose heads or neurons: {reason}.", FAMILIES
    )


def cut_of(found: Units, heads: Tensor, neurons: Tensor) -> dict[str, tuple[Tensor | None, Tensor | None]]:
    """For each projection that changes: the rows and the columns that stay (None: all).

    Args:
        heads: LongTensor [layers, kept], query heads that stay, as `check_kept` takes them.
        neurons: LongTensor [layers, kept].
    """
    within = torch.arange(found.head_dim)
    cut: dict[str, tuple[Tensor | None, Tensor | None]] = {}
    for index, layer in enumerate(found.layers):
        queries = (heads[index][:, None] * found.head_dim + within).flatten()
        groups = (heads[index] // found.group).unique()
        kept = {
            "queries": queries,
            "keys": (groups[:, None] * found.head_dim + within).flatten(),
            "neurons": neurons[index],
        }
        for block in layer.rows:
            before = cut.get(block.linear, (None, None))[0]
            rows = block.start + kept[block.kind]
            cut[block.linear] = (rows if before is None else torch.cat([before, rows]), None)
        cut[layer.out] = (None, queries)
        cut[layer.down] = (None, neurons[index])
    return cut


def check_kept(found: Units, heads: Tensor, neurons: Tensor) -> tuple[Tensor, Tensor]:
    """The units to keep, sorted and on the CPU, once it is certain that they make a grouped-query model.

    Raises:
        LabkitError: unknown or repeated units, or KV heads that would serve different numbers of query heads.
    """
    layers = len(found.layers)
    for what, kept, count in (("heads", heads, found.heads), ("neurons", neurons, found.neurons)):
        if kept.ndim != 2 or kept.shape[0] != layers or kept.shape[1] < 1:
            raise LabkitError(
                f"The {what} to keep are {list(kept.shape)}.",
                f"Give indices [{layers} layers, kept], at least one, as many in every layer.",
            )
        repeated = any(len(row.unique()) != len(row) for row in kept)
        if kept.is_floating_point() or kept.min() < 0 or kept.max() >= count or repeated:
            raise LabkitError(f"Not all {what} to keep exist once.", f"Give indices from 0 to {count - 1}.")
    for number, row in enumerate(heads):
        served = torch.bincount(row.cpu() // found.group, minlength=found.kv_heads)
        used = served[served > 0]
        if not (used == used[0]).all() or used[0] * len(used) != heads.shape[1]:
            raise _uneven(number, served)
        if len(used) != len((heads[0] // found.group).unique()):
            raise _uneven(number, served)
    return heads.cpu().long().sort(-1).values, neurons.cpu().long().sort(-1).values


def _uneven(layer: int, served: Tensor) -> LabkitError:
    return LabkitError(
        f"In layer {layer} the KV heads would keep {served.tolist()} query heads.",
        "Keep the same number for every KV head that stays, and as many KV heads in every layer.",
    )
