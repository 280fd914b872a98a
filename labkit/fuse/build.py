"""A recognised layer put together again from fused operations, part by part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, cast

import torch
from torch import Tensor, nn

from labkit.fuse.layer import FusedLayer
from labkit.fuse.merge import Linear, Merged, Owners
from labkit.fuse.operations import (
    Attend,
    FusedGate,
    FusedNorm,
    FusedRope,
    Normalise,
    OwnGate,
    OwnNorm,
    OwnProduct,
    OwnRope,
    PackedWeights,
    Product,
    Weights,
)
from labkit.fuse.pieces import hooks
from labkit.fuse.recognise import Plan
from labkit.fuse.report import Kept
from labkit.kernels.device import available, starts_early
from labkit.kernels.linear import arrival_counters
from labkit.kernels.packed import Packed
from labkit.models.linear import QuantizedLinear


@dataclass(frozen=True)
class Parts:
    """Which parts of a layer are fused; see `fuse.parts()`."""

    merge: bool = True
    norm: bool = True
    rope: bool = True
    gated: bool = True
    linear: bool = True
    residual: bool = True
    attention: bool = True

    @property
    def chosen(self) -> tuple[str, ...]:
        """The names of those that are on."""
        return tuple(each.name for each in fields(self) if getattr(self, each.name))


class Launching:
    """How a model's kernels are launched: what the device can do, and what they share.

    Args:
        model: whose device and largest product decide.
    """

    def __init__(self, model: nn.Module) -> None:
        sizes = [(int(cast(Any, each).out_features), next(_stored(each)).device) for each in _linears(model)]
        device = sizes[0][1] if sizes else torch.device("cpu")
        self.pdl = starts_early(device)
        self.counters: Tensor | None = None
        if available(device):  # layers run one after the other, so they share the counters
            self.counters = arrival_counters(3 * max(rows for rows, _ in sizes), device)

    def product(self, module: nn.Module, fused: bool, folds: bool) -> Weights | PackedWeights:
        """The product of a linear layer."""
        if isinstance(module, QuantizedLinear):
            return self.packed(module.packed, module.bias, module.activations, folds)
        linear = cast(nn.Linear, module)
        return Weights(linear.weight, linear.bias, fused, folds, self.counters, self.pdl)

    def merged(self, merged: Merged, like: nn.Module, fused: bool) -> Weights | PackedWeights:
        """The product of several linear layers such as `like`."""
        if isinstance(merged.weight, Packed):
            return self.packed(merged.weight, merged.bias, cast(QuantizedLinear, like).activations, False)
        return Weights(merged.weight, merged.bias, fused, False, self.counters, self.pdl)

    def packed(
        self, weight: Packed, bias: Tensor | None, activations: str | None, folds: bool
    ) -> PackedWeights:
        """A product with a packed weight, always by its own kernel."""
        return PackedWeights(weight, bias, activations, folds, self.counters, self.pdl)


def _linears(model: nn.Module) -> Iterator[nn.Module]:
    return (each for each in model.modules() if type(each) in (nn.Linear, QuantizedLinear))


def _stored(module: nn.Module) -> Iterator[Tensor]:
    yield from module.parameters()
    yield from module.buffers()


def prepares(product: Product) -> bool:
    """Whether a product can norm or gate its input itself."""
    return isinstance(product, PackedWeights) and product.activations is None


class Builder:
    """Puts one layer together.

    Attributes:
        merged: the weights that were merged on the way.
        applied: parts that found something to do.
        kept: what stays as it was, and why.
    """

    def __init__(self, plan: Plan, parts: Parts, owners: Owners, launching: Launching) -> None:
        self.plan, self.parts, self._owners, self._launching = plan, parts, owners, launching
        self.merged: list[Merged] = []
        self.applied: set[str] = {"attention"} if parts.attention else set()
        self.kept: list[Kept] = []

    def build(self) -> FusedLayer:
        """The fused layer. From here on merged weights own their memory."""
        plan, parts = self.plan, self.parts
        qkv = self._products("ATTENTION", "QKV" if "QKV" in plan.pieces else "Q K V")
        gate_up = self._products("MLP", "GATE_UP" if "GATE_UP" in plan.pieces else "GATE UP")
        after = [
            self._norm(each) if each in plan.pieces else None for each in ("AFTER_ATTENTION", "AFTER_MLP")
        ]
        out, down = self._product("OUT"), self._product("DOWN")
        for role, product, norm in (("OUT", out, after[0]), ("DOWN", down, after[1])):
            if parts.residual and norm is not None:
                self._keep(role, "residual", "a norm stands between it and the residual")
            elif parts.residual and isinstance(product, Weights | PackedWeights):
                self.applied.add("residual")
        bypassed = (
            piece for role, piece in plan.pieces.items() if role == "ATTENTION" or role not in plan.kept
        )
        attend = Attend(parts.attention, plan.terms, self._launching.counters, self._launching.pdl)
        own_hooks = tuple(table for each in bypassed for table in hooks(each))
        return FusedLayer(
            plan.layer, int(cast(Any, plan.pieces["ATTENTION"]).layer_idx), self._norm("NORM_ATTENTION", qkv), qkv,
            self._rope(), attend, out, after[0], self._norm("NORM_MLP", gate_up), gate_up, self._gate(down), down,
            after[1], parts.residual, own_hooks,
        )  # fmt: skip

    def _keep(self, role: str, part: str, reason: str) -> None:
        self.kept.append(Kept(self.plan.where[role], part, reason))

    def _norm(self, role: str, readers: tuple[Product, ...] = ()) -> Normalise:
        if self.parts.norm and role in self.plan.norms:
            self.applied.add("norm")
            return FusedNorm(
                self.plan.norms[role], self._launching.pdl, len(readers) == 1 and prepares(readers[0])
            )
        if self.parts.norm:
            self._keep(role, "norm", self.plan.kept[role])
        return OwnNorm(self.plan.pieces[role])

    def _product(self, role: str) -> Product:
        module = self.plan.pieces[role]
        if role in self.plan.kept:
            if self.parts.linear or self.parts.residual:
                self._keep(role, "linear", self.plan.kept[role])
            return OwnProduct(module)
        if self.parts.linear:
            self.applied.add("linear")
        return self._launching.product(module, self.parts.linear, self.parts.residual)

    def _products(self, whole: str, roles: str) -> tuple[Product, ...]:
        """The products of one input, merged if they may be."""
        names = roles.split()
        if not self.parts.merge:
            return tuple(map(self._product, names))
        strange = next((role for role in names if role in self.plan.kept), None)
        linears = [cast(Linear, self.plan.pieces[role]) for role in names]
        if strange is not None:
            reason: str | None = f"{self.plan.where[strange]} is not plain: {self.plan.kept[strange]}"
        elif len(names) == 1:
            reason = "its projections are one already"
        else:
            reason = self._owners.refusal(linears)
        if reason:
            self._keep(whole, "merge", reason)
            return tuple(map(self._product, names))
        merged = Merged(linears)
        self.merged.append(merged)
        self.applied |= {"merge", "linear"} if self.parts.linear else {"merge"}
        return (self._launching.merged(merged, linears[0], self.parts.linear),)

    def _rope(self) -> FusedRope | OwnRope:
        plan = self.plan
        own = next((role for role in ("ATTENTION", "Q_NORM", "K_NORM") if role in plan.kept), None)
        if self.parts.rope and own is None:
            self.applied.add("rope")
            norms = plan.norms.get("Q_NORM"), plan.norms.get("K_NORM")
            return FusedRope(plan.heads, plan.kv_heads, *norms, self._launching.pdl)
        if self.parts.rope and own is not None:
            self._keep(own, "rope", plan.kept[own])
        own_norms = plan.pieces.get("Q_NORM"), plan.pieces.get("K_NORM")
        return OwnRope(plan.heads, plan.kv_heads, *own_norms, plan.rotary)

    def _gate(self, reader: Product) -> FusedGate | OwnGate:
        if self.parts.gated and self.plan.activation is not None:
            self.applied.add("gated")
            return FusedGate(self.plan.activation, self._launching.pdl, prepares(reader))
        if self.parts.gated:
            self._keep("ACTIVATION", "gated", self.plan.kept["ACTIVATION"])
        return OwnGate(self.plan.pieces["ACTIVATION"])
