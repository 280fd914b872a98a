"""Rotary positions, split of the merged projection, per-head norms and the write to the store (reference only)."""

from __future__ import annotations

import torch
from torch import Tensor

from labkit.kernels.pages import Pages, write
from labkit.kernels.rms_norm import Norm, rms_norm


def rope_write(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    heads: int,
    kv_heads: int,
    pages: Pages | None = None,
    slots: Tensor | None = None,
    q_norm: Norm | None = None,
    k_norm: Norm | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """qkv [T, (heads + 2·kv_heads)·dim] → q [T, heads, dim], k, v [T, kv_heads, dim], k and v stored."""
    q, k, v = qkv.unflatten(1, (heads + 2 * kv_heads, -1)).split((heads, kv_heads, kv_heads), 1)
    q, k = _rotate(_normed(q, q_norm), cos, sin), _rotate(_normed(k, k_norm), cos, sin)
    if pages is not None and slots is not None:
        write(pages, slots, k, v)
    return q, k, v


def _normed(x: Tensor, norm: Norm | None) -> Tensor:
    return x if norm is None else rms_norm(x, norm.weight, norm.eps, offset=norm.offset, wide=norm.wide)[0]


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    turning, rest = x.tensor_split((cos.shape[1],), -1)
    first, second = turning.chunk(2, -1)
    turned = turning * cos[:, None] + torch.cat((-second, first), -1) * sin[:, None]
    return torch.cat((turned, rest), -1)
