"""The operations of a fused layer, each in two ways: a fused kernel, or what the layer did before.

All of them take and return packed tokens: [T, width], without a batch dimension.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.errors import LabkitError
from labkit.kernels.attention import packed_attention, paged_attention
from labkit.kernels.device import available
from labkit.kernels.gated import gated
from labkit.kernels.layout import Layout
from labkit.kernels.linear import linear
from labkit.kernels.packed import Packed
from labkit.kernels.packed_tiling import FEW
from labkit.kernels.paged_decode import decode
from labkit.kernels.pages import Pages, write
from labkit.kernels.prefill import varlen_attention
from labkit.kernels.rms_norm import Norm, rms_norm
from labkit.kernels.rope import rope_write
from labkit.models.linear import multiply

Product = Callable[..., Tensor]
"""(x [T, K], add [T, N] or None) → x · weightᵀ (+ bias) (+ add), [T, N]."""


@dataclass(frozen=True, eq=False)
class Pending:
    """The input of a product that its kernel may norm or gate itself.

    Args:
        x: [T, K]; [T, 2 K] with a gate.
        norm, gate, pdl: as for labkit.kernels.packed_linear.packed_linear; one of norm and gate.
    """

    x: Tensor
    norm: Norm | None = None
    gate: str | None = None
    pdl: bool = False


Input = Tensor | Pending


def settled(x: Input) -> Tensor:
    """The input itself, [T, K]."""
    if isinstance(x, Tensor):
        return x
    if x.norm is not None:
        norm = x.norm
        return rms_norm(x.x, norm.weight, norm.eps, offset=norm.offset, wide=norm.wide, pdl=x.pdl)[0]
    return gated(x.x, x.gate or "silu", pdl=x.pdl)


class Normalise(Protocol):
    """A norm with the residual addition before it: (normed, summed)."""

    def __call__(self, x: Tensor, add: Tensor | None = None) -> tuple[Input, Tensor]: ...


@dataclass(frozen=True, eq=False)
class FusedNorm:
    """One kernel for addition and norm.

    Args:
        leaves: for few tokens, leave the norm to the one product that reads it.
    """

    norm: Norm
    pdl: bool = False
    leaves: bool = False

    def __call__(self, x: Tensor, add: Tensor | None = None) -> tuple[Input, Tensor]:
        norm = self.norm
        plain = add is None and x.is_cuda and norm.weight.dtype == x.dtype
        if self.leaves and plain and len(x) <= FEW:
            return Pending(x, norm, pdl=self.pdl), x
        return rms_norm(x, norm.weight, norm.eps, add=add, offset=norm.offset, wide=norm.wide, pdl=self.pdl)


@dataclass(frozen=True, eq=False)
class OwnNorm:
    """The model's module, after an addition of its own."""

    module: nn.Module

    def __call__(self, x: Tensor, add: Tensor | None = None) -> tuple[Tensor, Tensor]:
        summed = x if add is None else add + x
        return self.module(summed[None])[0], summed


@dataclass(frozen=True, eq=False)
class Weights:
    """A product with a plain or merged weight.

    Args:
        fused: use the kernel for few tokens.
        folds: use it to add the residual in its epilogue.
        counters: of the kernel, see labkit.kernels.linear.arrival_counters.
    """

    weight: Tensor
    bias: Tensor | None
    fused: bool
    folds: bool
    counters: Tensor | None = None
    pdl: bool = False

    def __call__(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        folded = add if self.folds else None
        if self.fused or folded is not None:
            out = linear(x, self.weight, self.bias, add=folded, counters=self.counters, pdl=self.pdl)
        else:
            out = F.linear(x, self.weight, self.bias)
        return out if add is None or folded is not None else add + out


@dataclass(frozen=True, eq=False)
class PackedWeights:
    """A product with a packed weight, merged or not, which adds the residual in its kernel where it has one.

    Args:
        activations: see labkit.models.linear.multiply.
        others: as for Weights.
    """

    weight: Packed
    bias: Tensor | None
    activations: str | None
    folds: bool
    counters: Tensor | None = None
    pdl: bool = False

    def __call__(self, x: Input, add: Tensor | None = None) -> Tensor:
        folded = add if self.folds else None
        norm, gate = (x.norm, x.gate) if isinstance(x, Pending) else (None, None)
        out = multiply(
            x.x if isinstance(x, Pending) else x, self.weight, self.bias, activations=self.activations, add=folded,
            counters=self.counters, pdl=self.pdl, norm=norm, gate=gate,
        )  # fmt: skip
        return out if add is None or folded is not None else add + out


@dataclass(frozen=True, eq=False)
class OwnProduct:
    """The model's module, whatever it is: another library's quantised layer, a LoRA wrapper, one with hooks."""

    module: nn.Module

    def __call__(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        out: Tensor = self.module(x[None])[0]
        return out if add is None else add + out


@dataclass(frozen=True, eq=False)
class FusedRope:
    """Per-head norms, rotation and the write to the store in one kernel; it wants one merged projection."""

    heads: int
    kv_heads: int
    q_norm: Norm | None
    k_norm: Norm | None
    pdl: bool = False

    def __call__(
        self, parts: list[Tensor], cos: Tensor, sin: Tensor, pages: Pages | None, slots: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        qkv = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
        return rope_write(
            qkv, cos[0], sin[0], heads=self.heads, kv_heads=self.kv_heads, pages=pages, slots=slots,
            q_norm=self.q_norm, k_norm=self.k_norm, pdl=self.pdl,
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class OwnRope:
    """The model's own norms and rotary function, and a write of its own."""

    heads: int
    kv_heads: int
    q_norm: nn.Module | None
    k_norm: nn.Module | None
    rotary: Callable[..., tuple[Tensor, Tensor]]

    def __call__(
        self, parts: list[Tensor], cos: Tensor, sin: Tensor, pages: Pages | None, slots: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        counts = (self.heads, self.kv_heads, self.kv_heads)
        if len(parts) == 1:
            dim = parts[0].shape[1] // sum(counts)
            parts = list(parts[0].split([count * dim for count in counts], -1))
        q, k, v = (part.unflatten(1, (count, -1))[None] for part, count in zip(parts, counts, strict=True))
        q, k = (
            x if norm is None else norm(x) for x, norm in ((q, self.q_norm), (k, self.k_norm))
        )  # of the last dimension, so before or after the transposition is the same
        q, k = self.rotary(q.transpose(1, 2), k.transpose(1, 2), cos, sin)
        q, k, v = q[0].transpose(0, 1), k[0].transpose(0, 1), v[0]
        if pages is not None and slots is not None:
            write(pages, slots, k, v)
        return q, k, v


@dataclass(frozen=True, eq=False)
class FusedGate:
    """activation(gate) · up in one kernel.

    Args:
        leaves: for few tokens, leave it to the product that reads it.
    """

    activation: str
    pdl: bool = False
    leaves: bool = False

    def __call__(self, parts: list[Tensor]) -> Input:
        both = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
        if self.leaves and both.is_cuda and len(both) <= FEW:
            return Pending(both, gate=self.activation, pdl=self.pdl)
        return gated(both, self.activation, pdl=self.pdl)


@dataclass(frozen=True, eq=False)
class OwnGate:
    """The model's own activation, then the product."""

    activation: nn.Module

    def __call__(self, parts: list[Tensor]) -> Tensor:
        gate, up = parts if len(parts) == 2 else parts[0].chunk(2, -1)
        out: Tensor = self.activation(gate) * up
        return out


@dataclass(frozen=True, eq=False)
class Attend:
    """Attention over the store: decode rows first, then chunks, all of them in one kernel where `fused`.

    Where that kernel does not run, a loop over chunks reads fresh keys and values without a way through the store.
    """

    fused: bool
    terms: dict[str, Any]
    counters: Tensor | None = None
    pdl: bool = False

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, pages: Pages | None, layout: Layout) -> Tensor:
        options = self.terms
        if pages is None:
            return packed_attention(q, k, v, layout, **options)
        if layout.slots is None or layout.table is None or layout.visible is None:
            raise LabkitError("A paged store came with a layout without slots.", "Give the layout slots.")
        if not self.fused or not available(q.device):
            return paged_attention(q, pages, layout, **options, fresh=(k, v), decode=decode)
        table, visible, front = layout.table, layout.visible, layout.decodes
        if front == len(layout.queries):
            return self._decode(q, pages, table, visible)
        chunks = varlen_attention(
            q[front:], pages, table[front:], layout.chunk_starts, visible[front:], **options
        )
        if not front:
            return chunks
        return torch.cat((self._decode(q[:front], pages, table[:front], visible[:front]), chunks))

    def _decode(self, q: Tensor, pages: Pages, table: Tensor, visible: Tensor) -> Tensor:
        return decode(q, pages, table, visible, **self.terms, counters=self.counters, pdl=self.pdl)
