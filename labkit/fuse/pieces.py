"""The pieces of a layer, known one by one: norms, linear layers, activations, and what runs around them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.fuse import shapes
from labkit.fuse.match import Match, match
from labkit.kernels.rms_norm import Norm
from labkit.models.linear import QuantizedLinear

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {"silu": F.silu, "gelu": F.gelu, "gelu_tanh": partial(F.gelu, approximate="tanh")}
)


class Unfit(Exception):
    """Why something stays as it is; the text is the end of a sentence for the report."""


class Sources:
    """Matches of functions with shapes, each looked up once: layers of a model share their classes."""

    def __init__(self) -> None:
        self._found: dict[tuple[Any, int], Match | None] = {}

    def match(self, function: Any, known: tuple[tuple[str, str], ...]) -> Match | None:
        """The shape of a function, or None."""
        key = (function, id(known))
        if key not in self._found:
            self._found[key] = match(function, known)
        return self._found[key]

    def of(self, module: nn.Module, known: tuple[tuple[str, str], ...]) -> Match:
        """The shape of the forward of a module's class.

        Raises:
            Unfit: it has none.
        """
        found = self.match(type(module).forward, known)
        if found is None:
            raise Unfit(f"the forward of {type(module).__name__} is none that labkit knows")
        return found


def norm_of(module: nn.Module, sources: Sources) -> Norm:
    """An RMSNorm as data.

    Raises:
        Unfit: it is none of the known kinds.
    """
    if reason := altered(module):
        raise Unfit(reason)
    found = sources.of(module, shapes.NORMS)
    weight, offset = module.weight, 0.0
    if found.shape == shapes.NORMS[1][0]:
        unit = sources.match(getattr(type(module), "_norm", None), shapes.UNIT)
        if unit is None or "_norm" in vars(module):
            raise Unfit(f"the _norm of {type(module).__name__} is none that labkit knows")
        found, offset = unit, 1.0
    if type(weight) is not nn.Parameter or weight.ndim != 1:
        raise Unfit(f"its weight is a {type(weight).__name__}")
    return Norm(weight, float(getattr(module, found.roles["EPS"])), offset, offset > 0)


def linear_reason(module: nn.Module) -> str | None:
    """Why a module is no linear layer on a plain or a packed weight, or None if it is one."""
    if type(module) is QuantizedLinear:
        return altered(module) if module.input_scale is None else "its input is scaled first"
    if type(module) is not nn.Linear:
        return f"it is a {type(module).__name__}"
    weight = module.weight
    if type(weight) is not nn.Parameter or not weight.is_floating_point():
        return f"its weight is a {type(weight).__name__} of {weight.dtype}"
    if not weight.is_contiguous():
        return "its weight is not contiguous in memory"
    return altered(module)


def activation_of(module: nn.Module) -> str | None:
    """The activation's name, by its values."""
    grid = torch.linspace(-30, 30, 6001, dtype=torch.float64)
    try:
        found = module(grid)
    except (RuntimeError, TypeError, ValueError):
        return None
    if not isinstance(found, Tensor) or found.shape != grid.shape:
        return None
    same = (name for name, function in ACTIVATIONS.items() if (found - function(grid)).abs().max() <= 1e-9)
    return next(same, None)


def altered(module: nn.Module) -> str | None:
    """Whether other code runs around a module's forward: hooks, or a forward of this one instance."""
    if "forward" in vars(module):
        return "its forward was replaced"
    return "it has hooks" if any(map(alive, hooks(module))) else None


def hooks(module: nn.Module) -> Iterator[Mapping[int, Any]]:
    """The module's tables of forward hooks, which stay the same objects while hooks come and go."""
    yield module._forward_hooks
    yield module._forward_pre_hooks


def alive(table: Mapping[int, Any]) -> bool:
    """Whether some hook does something: transformers leaves its own behind, which record hidden states on request."""
    return any(True for _ in foreign(table))


def foreign(table: Mapping[int, Any]) -> Iterator[Any]:
    """Those hooks."""
    for hook in table.values():
        if getattr(hook, "__module__", "") != "transformers.utils.output_capturing":
            yield hook
