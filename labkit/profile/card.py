"""The cost card: what a model must store, move and compute on a device, and the floors that follow.

    card = cost_card(lm, ceilings())                  # this model here
    card = cost_card(config, DATASHEET["H200-SXM"])   # any configuration on a GPU one does not have
    print(card)                                       # every number with its formula

Floors are bounds, not forecasts: they assume that the bus or the arithmetic units never pause. How far a
measurement lies above its floor is the room for improvement.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from labkit.errors import LabkitError
from labkit.profile import formulas
from labkit.profile.datasheet import Ceilings
from labkit.profile.shape import Shape, shape_of


@dataclass(frozen=True)
class Phase:
    """Prefill or one decode step: its work, its traffic and its floor on given ceilings."""

    name: str
    flops: float
    bytes: float
    compute_seconds: float
    memory_seconds: float

    @property
    def intensity(self) -> float:
        """FLOPs ÷ bytes moved [FLOP/B]."""
        return formulas.intensity(self.flops, self.bytes)

    @property
    def floor(self) -> float:
        """The least time [s]: the larger of the compute and the memory time."""
        return max(self.compute_seconds, self.memory_seconds)

    @property
    def bound(self) -> str:
        """Which ceiling the floor comes from: "compute" or "memory"."""
        return "compute" if self.compute_seconds >= self.memory_seconds else "memory"


@dataclass(frozen=True)
class CostCard:
    """Costs of a model on a device at a prompt length, a decode context and a batch: bytes, FLOPs, seconds."""

    name: str
    shape: Shape
    ceilings: Ceilings
    dtype: str
    prompt: int
    context: int
    batch: int
    weight_bytes: float
    weight_bytes_read: float
    kv_bytes_per_token: float
    kv_bytes: float
    prefill: Phase
    decode: Phase

    @property
    def parameters(self) -> int:
        """Stored elements by the configuration."""
        return self.shape.parameters

    @property
    def ttft_floor(self) -> float:
        """The least TTFT [s], tokenising and queueing not counted."""
        return self.prefill.floor

    @property
    def tpot_floor(self) -> float:
        """The least TPOT [s] at this context."""
        return self.decode.floor

    @property
    def ridge(self) -> float:
        """Peak FLOP/s ÷ bandwidth [FLOP/B]."""
        return self.ceilings.ridge

    def __str__(self) -> str:
        from labkit.profile.card_text import render

        return render(self)

    __repr__ = __str__  # the last line of a notebook's cell shows this


def prefill_flops(shape: Shape, prompt: int, batch: int = 1) -> float:
    """FLOPs to process `batch` prompts and give one row of logits each.

    2 · body parameters · tokens + 2 · head parameters · rows + attention over the attended pairs.
    """
    attention = sum(
        formulas.attention_flops(shape.heads, shape.head_dim, formulas.attended_pairs(prompt, 0, window))
        for window in shape.windows
    )
    per_row = (
        formulas.matrix_flops(shape.body_matrix, prompt)
        + formulas.matrix_flops(shape.head_matrix, 1)
        + attention
    )
    return batch * per_row


def decode_flops(shape: Shape, context: int, batch: int = 1) -> float:
    """FLOPs of one step: a token a row that attends to `context` tokens, itself among them."""
    attention = sum(
        formulas.attention_flops(shape.heads, shape.head_dim, formulas.attended_pairs(1, context - 1, window))
        for window in shape.windows
    )
    return batch * (formulas.matrix_flops(shape.body_matrix + shape.head_matrix, 1) + attention)


def kv_cache_bytes(shape: Shape, context: int, batch: int = 1, element: float = 2) -> float:
    """KV cache [B] of `batch` rows; a layer with a sliding window keeps no more than the window."""
    kept = sum(min(context, window or context) for window in shape.windows)
    return formulas.kv_bytes(1, shape.kv_heads, shape.head_dim, kept, batch, element)


def cost_card(
    model_or_config: Any,
    ceilings: Ceilings,
    *,
    dtype: object = None,
    prompt: int = 512,
    context: int | None = None,
    batch: int = 1,
    weight_bytes: float | None = None,
    name: str | None = None,
) -> CostCard:
    """Compute the card of a model (LM or transformers model) or of a configuration.

    Args:
        ceilings: measured (`labkit.profile.ceilings()`) or from `DATASHEET`.
        dtype: of weights and KV cache; the model's or the configuration's own when None, else bfloat16.
        prompt: tokens of each prompt.
        context: tokens each row attends to in the decode step, its own among them; the prompt when None.
        batch: rows in prefill and in the decode step.
        weight_bytes: stored bytes where they are not parameters · bytes an element; an LM brings its own.

    Raises:
        LabkitError: a length or a batch below 1, or no decoder configuration.
    """
    context = prompt if context is None else context
    if min(prompt, context, batch) < 1:
        raise LabkitError(
            f"Prompt {prompt}, context {context} or batch {batch} is below 1.", "Give 1 or more."
        )
    shape = shape_of(getattr(model_or_config, "config", model_or_config))
    kind = dtype or getattr(model_or_config, "dtype", None) or "bfloat16"
    element = formulas.bytes_per(kind)
    if weight_bytes is None and dtype is None:
        weight_bytes = getattr(model_or_config, "weight_bytes", None)
    if weight_bytes is None:
        weight_bytes = shape.parameters * element
    read = weight_bytes - shape.looked_up * element
    cache = kv_cache_bytes(shape, context, batch, element)
    prefilled = kv_cache_bytes(shape, prompt, batch, element)  # written once, not read back in prefill
    return CostCard(
        name=name or getattr(model_or_config, "name", None) or shape.family,
        shape=shape,
        ceilings=ceilings,
        dtype=formulas.dtype_name(kind),
        prompt=prompt,
        context=context,
        batch=batch,
        weight_bytes=weight_bytes,
        weight_bytes_read=read,
        kv_bytes_per_token=formulas.kv_bytes(shape.layers, shape.kv_heads, shape.head_dim, 1, 1, element),
        kv_bytes=cache,
        prefill=_phase("prefill", prefill_flops(shape, prompt, batch), read + prefilled, ceilings),
        decode=_phase("decode", decode_flops(shape, context, batch), read + cache, ceilings),
    )


def _phase(name: str, flops: float, moved: float, ceilings: Ceilings) -> Phase:
    return Phase(name, flops, moved, flops / ceilings.flops, moved / ceilings.bandwidth)
