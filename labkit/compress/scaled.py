"""Scaled linear layers: which columns and rows of each weight are multiplied by what, and what else must follow.

    W' = diag(1 / r) · W · diag(s)       b' = b / r

s [K] belongs to the layer's input, which somebody divides by s; r [N] to its output, where a later layer's s was
folded into it. In exact arithmetic the model computes what it did before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor, nn

from labkit.compress.layers import linears, parent_of
from labkit.errors import LabkitError
from labkit.kernels.formats import Format
from labkit.kernels.packed import Packed, quantise
from labkit.models import LM


@dataclass(frozen=True, eq=False)
class Fold:
    """A tensor that linear layers read, and what can divide it.

    Args:
        readers: names of the linear layers.
        producer: name of the norm or linear layer that can divide it; None: only the readers themselves.
        rows: row of the producer that each channel comes from, LongTensor [K]; None without a producer.
        offset: of a norm, which multiplies by offset + weight; None where the producer is a linear layer.
    """

    readers: tuple[str, ...]
    producer: str | None = None
    rows: Tensor | None = None
    offset: float | None = None

    def pooled(self, statistic: Tensor) -> Tensor:
        """Means of a statistic [K] over the channels that share a row, which must share a scale: [K]."""
        if self.rows is None:
            return statistic
        rows = self.rows.to(statistic.device)
        total = torch.zeros(int(rows.max()) + 1, dtype=statistic.dtype, device=statistic.device)
        count = torch.bincount(rows, minlength=len(total)).to(statistic)
        return (total.index_add(0, rows, statistic) / count.clamp(min=1))[rows]


@dataclass(eq=False)
class Scaled:
    """What a method found, for `quantize` to carry out module by module.

    Attributes:
        columns: s by the linear layer's name, [K] float32.
        rows: r by the linear layer's name, [N] float32.
        norms: new parameters of norms, by their full names.
        inputs: 1 / s, [K] in the layer's dtype, of linear layers that must multiply their input themselves.
        clips: factors for the range of each group, [N, groups], by the linear layer's name.
    """

    columns: dict[str, Tensor] = field(default_factory=dict)
    rows: dict[str, Tensor] = field(default_factory=dict)
    norms: dict[str, Tensor] = field(default_factory=dict)
    inputs: dict[str, Tensor] = field(default_factory=dict)
    clips: dict[str, Tensor] = field(default_factory=dict)

    def fold(self, lm: LM, fold: Fold, scale: Tensor) -> None:
        """Divide what a fold's readers read by a scale.

        A norm's new weight is rounded to its dtype, and so is the factor of an input. What it then really divides by
        is what the readers multiply by, so nothing is lost in bfloat16 either.

        Args:
            scale: [K], the same for channels that share a row.

        Raises:
            LabkitError: it is not, or it is not positive.
        """
        scale = scale.to(torch.promote_types(scale.dtype, torch.float32))
        if not bool((scale > 0).all() and scale.isfinite().all()):
            raise LabkitError("A scale is not positive and finite.", "Keep channels of zeros at scale 1.")
        if fold.producer is None:
            reader = cast(nn.Linear, lm.model.get_submodule(fold.readers[0]))
            factor = (1 / scale).to(reader.weight.dtype)
            self.inputs |= dict.fromkeys(fold.readers, factor)
            scale = 1 / factor.to(scale)
        elif fold.offset is not None:
            scale = self._fold_norm(lm.model.get_submodule(fold.producer), fold.producer, fold.offset, scale)
        else:
            self._fold_linear(cast(nn.Linear, lm.model.get_submodule(fold.producer)), fold, scale)
        self.columns |= dict.fromkeys(fold.readers, scale)

    def _fold_norm(self, norm: nn.Module, name: str, offset: float, scale: Tensor) -> Tensor:
        own = dict(norm.named_parameters())
        old = own["weight"].detach().to(scale) + offset
        weight = (old / scale - offset).to(own["weight"].dtype)
        new = weight.to(scale) + offset
        scale = torch.where((new != 0) & (old != 0), old / new, 1.0).to(scale)
        dead = (new == 0) != (old == 0)  # rounded to nothing: that channel keeps its weight
        weight = torch.where(dead, own["weight"].detach(), weight)
        self.norms[f"{name}.weight"] = weight
        if "bias" in own:
            self.norms[f"{name}.bias"] = (own["bias"].detach().to(scale) / scale).to(own["bias"].dtype)
        return scale

    def _fold_linear(self, linear: nn.Linear, fold: Fold, scale: Tensor) -> None:
        if fold.rows is None or fold.producer is None:
            raise LabkitError("A fold into a linear layer has no rows.", "Take what `folds` finds.")
        place = fold.rows.to(scale.device)
        rows = torch.ones(linear.out_features, dtype=scale.dtype, device=scale.device)
        rows[place] = scale
        if not torch.equal(rows[place], scale):
            raise LabkitError(
                "Channels that share a row have different scales.", "Make them equal by Fold.pooled."
            )
        self.rows[fold.producer] = self.rows.get(fold.producer, 1.0) * rows

    def weight(self, name: str, linear: nn.Linear) -> Tensor:
        """W' [N, K], in float32 or better."""
        weight = linear.weight.detach()
        weight = weight.to(torch.promote_types(weight.dtype, torch.float32))
        if name in self.columns:
            weight = weight * self.columns[name].to(weight)
        return weight / self.rows[name].to(weight)[:, None] if name in self.rows else weight

    def bias(self, name: str, linear: nn.Linear) -> Tensor | None:
        """b' [N] in the layer's dtype."""
        if linear.bias is None or name not in self.rows:
            return None if linear.bias is None else linear.bias.detach()
        exact = linear.bias.detach().to(torch.promote_types(linear.bias.dtype, torch.float32))
        return (exact / self.rows[name].to(exact)).to(linear.bias.dtype)

    def packed(self, name: str, linear: nn.Linear, format: Format) -> Packed:
        """W' in a format, clipped as found for that format; scales in the layer's dtype."""
        return quantise(
            self.weight(name, linear), format, clip=self.clips.get(name), scale_dtype=linear.weight.dtype
        )

    def carry_out(self, lm: LM, formats: Mapping[str, Format]) -> Iterator[tuple[str, Packed, Tensor | None]]:
        """Change the model's norms and biases, and give what takes the place of its linear layers one by one.

        Layers that are not to be packed are scaled where something else relies on it.

        Args:
            lm: with modules of its own; parameters are replaced, never written to.

        Returns:
            (layer, its packed weight, the scale of its input or None), as labkit.compress.quantize wants it.
        """
        for path, value in self.norms.items():
            owner, name = parent_of(lm.model, path)
            setattr(owner, name, nn.Parameter(value, requires_grad=False))
        for name, linear in linears(lm).items():
            format = formats.get(name)
            if format is None and name not in self.rows and (name not in self.columns or name in self.inputs):
                continue
            if linear.bias is not None:
                linear.bias = nn.Parameter(cast(Tensor, self.bias(name, linear)), requires_grad=False)
            if format is None:  # a layer that keeps its precision, and multiplies no input itself
                columns = self.columns if name not in self.inputs else {}
                weight = Scaled(columns=columns, rows=self.rows).weight(name, linear).to(linear.weight.dtype)
                linear.weight = nn.Parameter(weight, requires_grad=False)
            else:
                yield name, self.packed(name, linear, format), self.inputs.get(name)
