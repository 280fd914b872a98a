"""One decoder layer over packed tokens, as few passes over memory as its operations allow.

    norm → q, k, v → norms of heads, rotation, write to the store → attention → output projection, residual
         → norm → gate, up → activation · up → down projection, residual

The residual stream is written twice a layer instead of four times: the addition happens where the sum is
produced (the epilogue of the projection) or where it is next read (the norm).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from labkit.errors import LabkitError
from labkit.fuse.operations import Attend, Input, Normalise, Product, settled
from labkit.fuse.pieces import alive

EPILOGUE_TOKENS = 16
"""Up to so many tokens a projection adds the residual itself. For more, the product is torch's, which would add in
a pass of its own, and the norm behind it, which reads the sum anyway, adds instead."""

CPU_TILE = 256
"""Tokens that a CPU takes through the MLP at once: its wide results are then still in the cache when they are read."""


@dataclass(frozen=True, eq=False)
class FusedLayer:
    """A layer's operations in order; `forward` takes the place of the layer's own.

    Args:
        layer: the module, whose own forward serves calls without `kv`.
        index: the layer's number, for its pages.
        qkv: one product, or one for each of q, k and v.
        gate_up: one product, or gate and up.
        after_attention, after_mlp: norms of what a sublayer adds to the residual stream (Gemma 2 and 3).
        folds: whether the output projection adds the residual.
        hooks: of the submodules that this forward does not call.
    """

    layer: nn.Module
    index: int
    norm_attention: Normalise
    qkv: tuple[Product, ...]
    rope: Callable[..., tuple[Tensor, Tensor, Tensor]]
    attend: Attend
    out: Product
    after_attention: Normalise | None
    norm_mlp: Normalise
    gate_up: tuple[Product, ...]
    gate: Callable[[list[Tensor]], Input]
    down: Product
    after_mlp: Normalise | None
    folds: bool
    hooks: tuple[Mapping[int, Any], ...]

    def forward(self, hidden_states: Tensor, *args: Any, **context: Any) -> Tensor:
        """The layer's forward: hidden states [1, T, H] to hidden states.

        Without `kv`, in training, for gradients, and while a submodule has hooks, it is the layer's own.

        Raises:
            LabkitError: a mask or another cache came with `kv`.
        """
        kv = context.get("kv")
        if kv is None or args or self._needs_own(hidden_states):
            out: Tensor = type(self.layer).forward(self.layer, hidden_states, *args, **context)
            return out
        if context.get("attention_mask") is not None or context.get("past_key_values") is not None:
            raise LabkitError(
                "A mask or transformers' own cache came with `kv`, and would be ignored.", "Pass `kv` alone."
            )
        return self._run(hidden_states[0], context["position_embeddings"], kv)[None]

    def _run(self, hidden: Tensor, positions: tuple[Tensor, Tensor], kv: Any) -> Tensor:
        """hidden [T, H]; cos and sin [1, T, rotated]."""
        normed, hidden = self._join(self._mix(hidden, positions, kv), hidden)
        if hidden.is_cuda or len(hidden) <= CPU_TILE:
            return self._mlp(normed, hidden)
        pairs = zip(settled(normed).split(CPU_TILE), hidden.split(CPU_TILE), strict=True)
        return torch.cat([self._mlp(*pair) for pair in pairs])

    def _mlp(self, normed: Input, hidden: Tensor) -> Tensor:
        """The stream after the MLP."""
        inner = self.gate([product(normed) for product in self.gate_up])
        if self.after_mlp is not None:
            return hidden + settled(self.after_mlp(self.down(inner))[0])
        return self.down(inner, hidden)

    def _mix(self, hidden: Tensor, positions: tuple[Tensor, Tensor], kv: Any) -> Tensor:
        """Norm to attention: [T, heads · dim]."""
        pages, layout = kv.pages(self.index), kv.layout
        normed, _ = self.norm_attention(hidden)
        parts = [product(normed) for product in self.qkv]
        q, k, v = self.rope(parts, *positions, pages, layout.slots)
        return self.attend(q, k, v, pages, layout).flatten(1)

    def _join(self, mixed: Tensor, hidden: Tensor) -> tuple[Input, Tensor]:
        """What attention adds to the residual stream: (input of the MLP, the stream)."""
        if self.after_attention is not None:
            return self.norm_mlp(settled(self.after_attention(self.out(mixed))[0]), hidden)
        if self.folds and len(hidden) <= EPILOGUE_TOKENS:
            return self.norm_mlp(self.out(mixed, hidden))
        return self.norm_mlp(self.out(mixed), hidden)

    def _needs_own(self, hidden: Tensor) -> bool:
        if self.layer.training or hidden.shape[0] != 1:
            return True
        if any(self.hooks) and any(map(alive, self.hooks)):
            return True
        return needs_gradient(self.layer, hidden)


def needs_gradient(module: nn.Module, x: Tensor) -> bool:
    """Whether gradients are being recorded through a module, which kernels cannot give."""
    if not torch.is_grad_enabled():
        return False
    return x.requires_grad or any(parameter.requires_grad for parameter in module.parameters())
