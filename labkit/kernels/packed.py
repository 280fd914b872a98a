"""Weights in few bits: how they lie in memory, and the arithmetic of getting there and back.

    q = clamp(round(w / s) + z, low, high)        ŵ = (q - z) · s

A scale s, and a zero point z in affine formats, belong to the whole matrix, to one row (one output channel) or to a
group of columns of a row. Groups cost memory and buy accuracy: an outlier then spoils the grid of its group alone.

Two numbers of 4 bits share a byte. The byte i of a block holds column i in its low half and column i + BLOCK/2 in its
high half, where a block is a group, or PAIRED columns in formats without groups. So both halves of a byte share
their scale, and what a kernel unpacks from neighbouring bytes are neighbouring columns. Rows are padded to whole
blocks, or to ALIGNED bytes, so that a kernel may load several at once.

Sources: Jacob et al. 2018 (affine quantisation); Micikevicius et al. 2022, "FP8 formats for deep learning" (e4m3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from labkit.errors import LabkitError
from labkit.kernels.formats import FP8, LARGEST_FP8, Format

ALIGNED = 16
"""Bytes that the rows of a packed matrix are multiples of."""


@dataclass(frozen=True, eq=False)
class Packed:
    """A matrix [N, K] in a format.

    Args:
        values: int8 or float8_e4m3fn [N, K rounded up to ALIGNED]; for int4 uint8 [N, blocks · block / 2].
        scales: [N, groups]; [1, 1] for one scale in all. The dtype that the matrix had, or float32.
        zeros: zero points in affine formats, [N, groups] (or [1, 1]): uint8 for int4, int8 for int8; else None.
        columns: K.
    """

    values: Tensor
    scales: Tensor
    zeros: Tensor | None
    format: Format
    columns: int

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)."""
        return self.values.shape[0], self.columns

    @property
    def nbytes(self) -> int:
        """What it takes, scales and zero points included."""
        return sum(each.numel() * each.element_size() for each in self.tensors)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """What is stored."""
        return (self.values, self.scales) if self.zeros is None else (self.values, self.scales, self.zeros)

    def integers(self) -> Tensor:
        """The stored numbers one by one, [N, K]: int16 for int8 and int4 (0 … 15), float32 for fp8."""
        if self.format.kind == "int4":
            return unpack(self.values, self.format.block, self.columns).to(torch.int16)
        values = self.values[:, : self.columns]
        return values.to(torch.float32 if self.format.kind == "fp8" else torch.int16)

    def dequantise(self, dtype: torch.dtype | None = None) -> Tensor:
        """(q - z) · s, [N, K], computed in float32 (float64 if that is wanted) and rounded to `dtype` once.

        Args:
            dtype: the scales' if not given.
        """
        dtype = dtype or self.scales.dtype
        exact = torch.promote_types(dtype, torch.float32)
        q, zero = (
            self.integers().to(exact),
            self.format.middle if self.zeros is None else self._wide(self.zeros),
        )
        return ((q - zero) * self._wide(self.scales).to(exact)).to(dtype)

    def rows(self, start: int, stop: int) -> Packed:
        """Some rows, as views.

        Raises:
            LabkitError: they are not all there.
        """
        if not 0 <= start <= stop <= len(self.values):
            raise LabkitError(
                f"Rows {start}:{stop} of {len(self.values)} do not exist.", "Give rows that do."
            )
        cut = slice(None) if self.format.tensor else slice(start, stop)
        zeros = None if self.zeros is None else self.zeros[cut]
        return Packed(self.values[start:stop], self.scales[cut], zeros, self.format, self.columns)

    def _wide(self, each: Tensor) -> Tensor:
        """One number for each column that it serves."""
        group = self.format.group
        return each if group is None else each.repeat_interleave(group, 1)[:, : self.columns]


def cat(parts: Sequence[Packed]) -> Packed:
    """Matrices one above the other, as one: copies.

    Raises:
        LabkitError: `mismatch` has something against it.
    """
    if reason := mismatch(parts):
        raise LabkitError(f"These weights cannot become one: {reason}.", "Keep them apart.")
    first = parts[0]
    zeros = (
        None if first.zeros is None else torch.cat([each.zeros for each in parts if each.zeros is not None])
    )
    values, scales = (torch.cat([getattr(each, name) for each in parts]) for name in ("values", "scales"))
    return Packed(values, scales, zeros, first.format, first.columns)


def mismatch(parts: Sequence[Packed]) -> str | None:
    """Why packed matrices cannot become one, or None."""
    kinds = {(each.format, each.columns, each.scales.dtype, each.values.device) for each in parts}
    if len(kinds) > 1:
        return "they differ in format, input, dtype of the scales or device"
    return "one scale serves each whole matrix" if parts[0].format.tensor else None


def quantise(
    weight: Tensor, format: Format, *, clip: Tensor | None = None, scale_dtype: torch.dtype | None = None
) -> Packed:
    """Round to the nearest number of the grid.

    Args:
        weight: [N, K], finite.
        clip: [N, groups] (or [1, 1]), factors of (0, 1] for the range that each grid covers; larger weights saturate.
        scale_dtype: of the scales; the weight's if not given. Weights are rounded with the scales as stored.

    Raises:
        LabkitError: not a matrix, NaN or infinite weights, or a clip of another shape.
    """
    if weight.ndim != 2 or 0 in weight.shape or not weight.is_floating_point():
        raise LabkitError(
            f"A {weight.dtype} tensor {list(weight.shape)} cannot be quantised.",
            "Give a matrix [N, K] of floats.",
        )
    exact = weight.detach().to(torch.promote_types(weight.dtype, torch.float32))
    if not bool(exact.isfinite().all()):
        raise LabkitError("The weight has NaN or infinite entries.", "Repair it before quantising it.")
    grouped = _grouped(exact, format)
    scale, zero = grid(grouped, format, clip, scale_dtype or weight.dtype)
    wide = scale.to(exact.dtype)[..., None]
    if format.kind == "fp8":
        q = (grouped / wide).clamp(-LARGEST_FP8, LARGEST_FP8)
    else:
        middle = format.middle if zero is None else zero[..., None]
        q = ((grouped / wide).round() + middle).clamp(*format.limits)
    flat = q.reshape(*weight.shape[:1], -1)[:, : weight.shape[1]]
    zeros = None if zero is None else zero.to(torch.uint8 if format.kind == "int4" else torch.int8)
    return Packed(_store(flat, format), scale, zeros, format, weight.shape[1])


def grid(
    grouped: Tensor, format: Format, clip: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor | None]:
    """Scale and zero point of every group.

    Args:
        grouped: [N, groups, columns of a group], or [1, 1, N · K] for one scale in all.
        clip: see `quantise`.
        dtype: of the scales.

    Returns:
        (scales [N, groups] in dtype, zero points as integers in float, or None). A group of zeros has scale 1.
    """
    if clip is not None and clip.shape != grouped.shape[:2]:
        raise LabkitError(
            f"A clip {list(clip.shape)} does not fit {list(grouped.shape[:2])} grids.",
            "Give one factor for each.",
        )
    factor = 1.0 if clip is None else clip.to(grouped)
    if format.symmetric:
        top = LARGEST_FP8 if format.kind == "fp8" else format.limits[1] - format.middle
        return _usable(grouped.abs().amax(-1) * factor / top, dtype), None
    # zero belongs to every grid, so that what is zero stays zero
    low, high = grouped.amin(-1).clamp(max=0) * factor, grouped.amax(-1).clamp(min=0) * factor
    bottom, top = format.limits
    scale = _usable((high - low) / (top - bottom), dtype)
    zero = (bottom - low / scale.to(low)).round().clamp(bottom, top)
    return scale, torch.where(
        high == low, float(format.middle), zero
    )  # zeros alone are the middle of their grid


def pack(numbers: Tensor, block: int) -> Tensor:
    """Two numbers of 4 bits to a byte.

    Args:
        numbers: [N, K], 0 … 15.
        block: even; see the top of this file.

    Returns:
        uint8 [N, ceil(K / block) · block / 2].
    """
    padded = F.pad(numbers.to(torch.uint8), (0, -numbers.shape[1] % block))
    low, high = padded.unflatten(1, (-1, 2, block // 2)).unbind(2)
    return (low | high << 4).flatten(1)


def unpack(values: Tensor, block: int, columns: int) -> Tensor:
    """`pack` undone: uint8 [N, columns]."""
    byte = values.unflatten(1, (-1, block // 2))
    return torch.stack((byte & 15, byte >> 4), 2).flatten(1)[:, :columns]


def _grouped(weight: Tensor, format: Format) -> Tensor:
    """[N, groups, group], the last group filled up with zeros, which change no grid."""
    if format.tensor:
        return weight.reshape(1, 1, -1)
    group = format.group or weight.shape[1]
    return F.pad(weight, (0, -weight.shape[1] % group)).unflatten(1, (-1, group))


def _usable(scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Scales as they are stored: 1 where everything is zero, never below the smallest normal number."""
    tiny = torch.finfo(dtype).tiny
    return torch.where(scale > 0, scale.clamp(min=tiny), 1.0).to(dtype)


def _store(q: Tensor, format: Format) -> Tensor:
    if format.kind == "int4":
        return pack(q, format.block)
    padded = F.pad(q, (0, -q.shape[1] % ALIGNED))
    return padded.to(FP8 if format.kind == "fp8" else torch.int8)
