"""Rotary positions, with all that happens between the merged projection and attention in one pass.

    [q heads | k heads | v heads] of a token
      → split, RMSNorm of each q and k head (Qwen3, Gemma 3), rotation of q and k
      → q for attention; k and v to attention and to their slot in the paged store, int8 if the store is

Rotation turns pair i of a head, numbers i and i + rotated/2, by the angle position · frequency[i]:

    x' = x · cos + (-second half | first half) · sin         of the first `rotated` numbers; the rest pass

The kernel reads the projection once; unfused, splitting, norms, rotation, quantisation and the write to the
store are some twenty kernels. A program takes a few heads of one token, always the same ones, so the company
of other tokens changes no bit.

Sources: Su et al. 2021, "RoFormer" (rotary positions); Henry et al. 2020, "Query-Key Normalization".
"""

from __future__ import annotations

from functools import partial
from types import ModuleType

import torch
from torch import Tensor

from labkit.errors import LabkitError
from labkit.kernels.device import compiles, dependent, power
from labkit.kernels.pages import Pages, write
from labkit.kernels.rms_norm import Norm
from labkit.kernels.rms_norm import reference as normalised

WIDEST = 512
"""Numbers in a head up to which the kernel takes it."""


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
    pdl: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Split, norm, rotate and store, by the kernel where it runs and in torch elsewhere.

    Args:
        qkv: [T, (heads + 2·kv_heads)·dim], the merged projection.
        cos, sin: [T, rotated], as transformers' rotary embeddings give them; rotated ≤ dim.
        pages: where k and v are written; None: nowhere.
        slots: int64 or int32 [T], each token's slot. A token of a negative slot (the padding of a captured
            graph) is not written.
        q_norm, k_norm: of every head, weight [dim], before the rotation.
        pdl: programmatic dependent launch, see rms_norm.launch; no effect on the reference.

    Returns:
        q [T, heads, dim], k and v [T, kv_heads, dim], in the dtype of qkv; some may be views.

    Raises:
        LabkitError: the shapes do not fit together, or pages come without slots.
    """
    _check(qkv, cos, sin, heads, kv_heads, pages, slots)
    dim = qkv.shape[1] // (heads + 2 * kv_heads)
    trained = torch.is_grad_enabled() and any(norm and norm.weight.requires_grad for norm in (q_norm, k_norm))
    runs = compiles(qkv) and dim <= WIDEST and not trained and _alike(q_norm, k_norm, qkv.dtype)
    function = partial(launch, pdl=pdl) if runs else reference
    return function(
        qkv, cos, sin, heads=heads, kv_heads=kv_heads, pages=pages, slots=slots, q_norm=q_norm, k_norm=k_norm
    )


def reference(
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
    """rope_write in torch, any dtype and device; bit for bit what transformers' attention modules compute.

    On a GPU, looking for negative slots stops the host: only the kernel can be captured in a graph.
    """
    merged = qkv.unflatten(1, (heads + 2 * kv_heads, -1))
    turning, v = merged.split((heads + kv_heads, kv_heads), 1)
    if q_norm or k_norm:
        parts = zip(turning.split((heads, kv_heads), 1), (q_norm, k_norm), strict=True)
        turning = torch.cat([_normed(part, norm) for part, norm in parts], 1)
    q, k = rotate(turning, cos, sin).split((heads, kv_heads), 1)
    if pages is not None and slots is not None:
        kept = slots >= 0
        write(pages, slots[kept].long(), k[kept], v[kept])
    return q, k, v


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [T, heads, dim] with the first `rotated` numbers of each head turned; cos, sin [T, rotated]."""
    turning, rest = x.tensor_split((cos.shape[1],), -1)
    first, second = turning.chunk(2, -1)
    turned = turning * cos[:, None] + torch.cat((-second, first), -1) * sin[:, None]
    return torch.cat((turned.to(x.dtype), rest), -1) if rest.shape[-1] else turned.to(x.dtype)


def launch(
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
    tile: int | None = None,
    warps: int = 1,
    pdl: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """The kernel, with the contract of rope_write for dtypes in device.FLOATS and dim up to WIDEST; either
    both norms or none, of the same eps, offset and `wide`. q and k are contiguous, v is a view of qkv.

    Args:
        tile: heads of one program, a power of 2; chosen from sizes that do not vary from step to step if not
            given, so that the order of a norm's sum does not either.
        pdl: programmatic dependent launch, see rms_norm.launch.
    """
    tokens, rotated = cos.shape
    dim = qkv.shape[1] // (heads + 2 * kv_heads)
    qkv, norm = qkv.contiguous(), q_norm
    vectors = slots, *(each.weight if each else None for each in (q_norm, k_norm))
    q = torch.empty(tokens, heads, dim, dtype=qkv.dtype, device=qkv.device)
    k = torch.empty(tokens, kv_heads, dim, dtype=qkv.dtype, device=qkv.device)
    v = qkv.view(tokens, heads + 2 * kv_heads, dim)[:, heads + kv_heads :]
    tile = tile or max(1, min(power(heads), 512 // power(dim)))  # 16 bytes a thread in half precision
    parts = -(-heads // tile) + (1 if pages is None else 2) * -(-kv_heads // tile)
    if tokens:
        kernels = _kernels()
        kernels.rope_kernel[(tokens * parts,)](
            qkv, cos.contiguous(), sin.contiguous(), q, k,
            *((pages.keys, pages.values, pages.key_scales, pages.value_scales) if pages else (None,) * 4),
            *(each if each is None else each.contiguous() for each in vectors), norm.eps if norm else 0.0,
            HEADS=heads, KV_HEADS=kv_heads, DIM=dim, HALF=rotated // 2, HALF_PAD=power(rotated // 2),
            REST_PAD=power(dim - rotated), TILE=tile, PARTS=parts,
            OFFSET=norm.offset if norm else 0.0, WIDE=bool(norm and norm.wide),
            DIVIDE=kernels.INTERPRETED, PDL=pdl, num_warps=warps, **dependent(pdl),
        )  # fmt: skip
    return q, k, v


def _check(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    heads: int,
    kv_heads: int,
    pages: Pages | None,
    slots: Tensor | None,
) -> None:
    """Refuse shapes that do not describe one step."""
    count = heads + 2 * kv_heads
    tokens, width = qkv.shape
    if width % count or cos.shape != sin.shape or cos.shape[0] != tokens:
        raise LabkitError(
            f"A projection {tuple(qkv.shape)} of {heads} + 2·{kv_heads} heads came with cos {tuple(cos.shape)} "
            f"and sin {tuple(sin.shape)}.",
            "Pass qkv [tokens, (heads + 2·kv_heads)·dim] and cos and sin [tokens, rotated].",
        )
    dim, rotated = width // count, cos.shape[1]
    if rotated % 2 or not 0 < rotated <= dim:
        raise LabkitError(
            f"{rotated} of {dim} numbers of a head cannot be rotated in pairs.", "Check cos and sin."
        )
    if pages is None:
        return
    if slots is None or slots.shape != (tokens,):
        raise LabkitError(
            f"{tokens} tokens for a paged store came with {'no' if slots is None else len(slots)} slots.",
            "Give one slot a token; a negative one is not written.",
        )
    if pages.keys.shape[2:] != (kv_heads, dim):
        raise LabkitError(
            f"Keys of {kv_heads} heads of {dim} do not fit pages of {tuple(pages.keys.shape[2:])}.",
            "Allocate the pages for this model.",
        )


def _alike(q_norm: Norm | None, k_norm: Norm | None, dtype: torch.dtype) -> bool:
    """Whether the kernel can do both norms: none, or two that differ in weights only, in the right dtype."""
    if q_norm is None or k_norm is None:
        return q_norm is k_norm
    same = (q_norm.eps, q_norm.offset, q_norm.wide) == (k_norm.eps, k_norm.offset, k_norm.wide)
    return same and (q_norm.wide or q_norm.weight.dtype == k_norm.weight.dtype == dtype)


def _normed(x: Tensor, norm: Norm | None) -> Tensor:
    if norm is None:
        return x
    return normalised(x, norm.weight, norm.eps, offset=norm.offset, wide=norm.wide)[0].to(x.dtype)


def _kernels() -> ModuleType:
    """Imported on first use: Triton does not exist everywhere, and its interpreter must be chosen before."""
    from labkit.kernels import rope_triton

    return rope_triton
