"""A model's attention replaced by one over packed rows and paged keys and values.

transformers looks attention up by name for every call, and hands it every extra argument of the forward. So
the model's code stays as it is: `install` changes the name, and the caller passes `kv`, which says how the
rows are packed and where keys and values are stored.

    install(model)
    model(input_ids=ids, position_ids=positions, use_cache=False, kv=kv)      # ids, positions [1, tokens]
    remove(model)

Nothing that would change a result is ignored: a mask, a transformers cache, missing positions or a term that
this attention does not know raise an error. transformers' own mask builders stay out of it, since they look
at the positions on the host and so would stop it in every step until the device is done.
"""

from __future__ import annotations

import copy
import inspect
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from labkit.errors import LabkitError
from labkit.kernels.attention import packed_attention, paged_attention
from labkit.kernels.layout import Layout
from labkit.kernels.paged_decode import decode
from labkit.kernels.pages import Pages, write
from labkit.models import fill
from labkit.models.refuse import refuse_config, refuse_model

NAME = "labkit"


class KV(Protocol):
    """What a forward needs to know of the cache: `kv` of its call."""

    @property
    def layout(self) -> Layout:
        """How this step's rows are packed."""

    def pages(self, layer: int) -> Pages | None:
        """Where a layer's keys and values are stored; None: nowhere, rows attend within the step."""


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    kv: KV | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **other: Any,
) -> tuple[Tensor, None]:
    """Store this step's keys and values, and attend; the signature is that of transformers' AttentionInterface.

    Args:
        module: the layer's attention; its `layer_idx` says which pages are its own.
        query: [1, heads, tokens, head_dim], rotary positions applied.
        key, value: [1, kv_heads, tokens, head_dim].
        other: what transformers passes along and attention has no use for.

    Returns:
        ([1, tokens, heads, head_dim], None).

    Raises:
        LabkitError: `kv` is missing, or something was asked that would be ignored.
    """
    if kv is None:
        raise LabkitError(MISSING.format("`kv`"), HOW)
    if attention_mask is not None or position_bias is not None or s_aux is not None or dropout:
        raise LabkitError(
            "A mask, a bias, attention sinks or dropout was asked for, and paged attention has none.",
            "Rows are kept apart by the layout of `kv`: pass no attention_mask, and call model.eval().",
        )
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    options: dict[str, Any] = {
        "scale": q.shape[-1] ** -0.5 if scaling is None else scaling,
        "window": sliding_window,
        "softcap": softcap,
    }
    pages = kv.pages(int(module.layer_idx))  # type: ignore[arg-type]
    if pages is None:
        return packed_attention(q, k, v, kv.layout, **options)[None], None
    if kv.layout.slots is None:
        raise LabkitError("A paged store came with a layout without slots.", "Give the layout slots.")
    write(pages, kv.layout.slots, k, v)
    out = paged_attention(q, pages, kv.layout, **options, fresh=(k, v), decode=decode)
    return out[None], None


def install(model: PreTrainedModel) -> None:
    """Replace the model's attention until `remove`. Installs nest: the last remove restores.

    Raises:
        LabkitError: the model asks more of attention than this one gives (see labkit/models/refuse.py).
    """
    state = getattr(model, STATE, None)
    if state is None:
        _check(model)
        AttentionInterface.register(NAME, attention)
        hook = model.base_model.register_forward_pre_hook(_refuse_ignored, with_kwargs=True)
        state = {"depth": 0, "before": model.config._attn_implementation, "hook": hook}
        model.set_attn_implementation(NAME)
        setattr(model, STATE, state)
    state["depth"] += 1


def remove(model: PreTrainedModel) -> None:
    """Undo one `install`; after the last one the model has its own attention again."""
    state = getattr(model, STATE, None)
    if state is None:
        return
    state["depth"] -= 1
    if state["depth"] == 0:
        state["hook"].remove()
        model.set_attn_implementation(state["before"])
        delattr(model, STATE)


STATE = "_labkit_attention"
MISSING = "The model's attention is installed over a paged cache, and the forward was called without {}."
HOW = (
    "Call model(input_ids=…, position_ids=…, use_cache=False, kv=…), or labkit.cache.attention.remove(model)."
)


def _check(model: PreTrainedModel) -> None:
    """Refuse by a forward of the same architecture on the meta device, which touches no weights."""
    config = copy.deepcopy(model.config)
    name = str(getattr(config, "name_or_path", "") or type(model).__name__)
    refuse_config(config, name)
    with torch.no_grad():
        refuse_model(fill.skeleton(config, model.dtype), name)


def _refuse_ignored(base: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Before every forward: refuse arguments that the attention would ignore, or cannot do without."""
    named = zip(inspect.signature(base.forward).parameters, args, strict=False) if args else ()
    given = {**dict(named), **kwargs}
    if getattr(base.config, "_attn_implementation", None) != NAME:
        raise LabkitError(
            "Another attention was set on a model that has labkit's installed; it would ignore `kv`.",
            "Call labkit.cache.attention.remove(model) first.",
        )
    for word in ("kv", "position_ids"):
        if given.get(word) is None:
            raise LabkitError(MISSING.format(f"`{word}`"), HOW)
    if given.get("use_cache") is not False or given.get("past_key_values") is not None:
        raise LabkitError("transformers' own cache was asked for beside the paged one.", HOW)
    if given.get("attention_mask") is not None:
        raise LabkitError(
            "An attention_mask was given, and paged attention would ignore it.",
            "Pack rows without padding; the layout of `kv` keeps them apart.",
        )
    shape = tuple(given["position_ids"].shape)
    if shape != (1, given["kv"].layout.tokens):
        raise LabkitError(
            f"Positions of shape {shape} came with a layout of {given['kv'].layout.tokens} tokens.",
            "Pack all rows into one: input_ids and position_ids [1, tokens].",
        )


def position_limit(config: Any) -> int | None:
    """Tokens a row may reach at most, so that its positions mean the same whoever shares its batch.

    Learned position tables end at max_position_embeddings. Long-rope and dynamic rope switch frequencies for
    the whole batch when its longest position passes the original length, so one long row would change all
    others, and keys already stored: their rows end there.

    Args:
        config: a model's configuration.

    Returns:
        The limit, or None where the configuration names none.
    """
    text = config.get_text_config(decoder=True)
    most = getattr(text, "max_position_embeddings", None)
    limits = [most] if most else []
    rope = getattr(text, "rope_parameters", None) or {}
    for kind in (
        [rope] if "rope_type" in rope else [value for value in rope.values() if isinstance(value, dict)]
    ):
        original = kind.get("original_max_position_embeddings")
        if kind.get("rope_type") in ("longrope", "dynamic") and original:
            limits.append(original)
    return min(limits, default=None)
