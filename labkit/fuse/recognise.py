"""What a decoder layer does, read from the sources of its forwards and the kinds of its submodules.

A layer is known by its forward, its attention's and its MLP's (shapes.py). The pieces inside them, norms, linear
layers, the activation, the rotary function, are known one by one: a piece that is not what it seems (a quantised
linear layer, a LoRA wrapper, something with hooks) keeps its place in the layer and is called as it is.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.fuse import shapes
from labkit.fuse.match import Match, match
from labkit.kernels.rms_norm import Norm

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {"silu": F.silu, "gelu": F.gelu, "gelu_tanh": partial(F.gelu, approximate="tanh")}
)
LINEARS = ("Q", "K", "V", "QKV", "OUT", "GATE", "UP", "GATE_UP", "DOWN")
NORMS = ("NORM_ATTENTION", "AFTER_ATTENTION", "NORM_MLP", "AFTER_MLP", "Q_NORM", "K_NORM")


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
        """The shape of a module's forward.

        Raises:
            Unfit: it has none, or other code runs around it.
        """
        reason = altered(module)
        found = None if reason else self.match(type(module).forward, known)
        if found is None:
            raise Unfit(reason or f"the forward of {type(module).__name__} is none that labkit knows")
        return found


@dataclass(frozen=True)
class Plan:
    """A recognised layer.

    Attributes:
        name: of the layer in the model.
        pieces: role → submodule, for every role of shapes.py that the layer has.
        where: role → name of the submodule in the model.
        norms: those of NORMS that are known, as data.
        activation: its name, or None where it is not known.
        rotary: the layer's own function, and whether it is known.
        scale, window, softcap: what the layer hands to attention, in the terms of kernels.attention.
        kept: role → why that piece is called as it is.
    """

    name: str
    layer: nn.Module
    pieces: dict[str, nn.Module]
    where: dict[str, str]
    heads: int
    kv_heads: int
    rotary: Callable[..., tuple[Tensor, Tensor]]
    rotary_known: bool
    scale: float | None
    window: int | None
    softcap: float | None
    norms: dict[str, Norm] = field(default_factory=dict)
    activation: str | None = None
    kept: dict[str, str] = field(default_factory=dict)

    @property
    def index(self) -> int:
        """The layer's number, by which its pages are found."""
        return int(self.pieces["ATTENTION"].layer_idx)  # type: ignore[arg-type]


def recognise(name: str, layer: nn.Module, sources: Sources) -> Plan:
    """What a layer does.

    Raises:
        Unfit: it is none of the known kinds, so that it must be left alone.
    """
    found = sources.of(layer, shapes.LAYERS)
    for word, value in found.extra["CONTEXT"].items():
        if word != "**" and not (isinstance(value, ast.Name) and value.id == word):
            raise Unfit(f"it hands its attention {word} = {ast.unparse(value)}")
    if "**" not in found.extra["CONTEXT"]:
        raise Unfit("it does not pass extra arguments on to its attention")
    pieces = {role: _child(layer, attribute) for role, attribute in found.roles.items()}
    where = {role: f"{name}.{attribute}" for role, attribute in found.roles.items()}
    for part, known in (("ATTENTION", shapes.ATTENTIONS), ("MLP", shapes.MLPS)):
        inner = sources.of(pieces[part], known)
        pieces |= {role: _child(pieces[part], attribute) for role, attribute in inner.roles.items()}
        where |= {role: f"{where[part]}.{attribute}" for role, attribute in inner.roles.items()}
        if part == "ATTENTION":
            terms, namespace = inner.extra["TERMS"], type(pieces[part]).forward.__globals__
    for role in ("DROP_ATTENTION", "DROP_MLP"):
        if role in pieces and type(pieces[role]) is not nn.Dropout:
            raise Unfit(f"where dropout stands in others it has a {type(pieces[role]).__name__}")
    rotary = namespace["apply_rotary_pos_emb"]
    heads, kv_heads = _heads(pieces)
    plan = Plan(
        name, layer, pieces, where, heads, kv_heads, rotary, _rotary_known(rotary, sources),
        **_terms(pieces["ATTENTION"], terms, namespace),
    )  # fmt: skip
    return _with_pieces(plan, sources)


def _with_pieces(plan: Plan, sources: Sources) -> Plan:
    """The plan with what is known of norms, linear layers and activation, and why the others are kept."""
    kept = {role: str(reason) for role in LINEARS if (reason := _linear_reason(plan.pieces.get(role)))}
    norms = {}
    for role in NORMS:
        if role in plan.pieces:
            try:
                norms[role] = norm_of(plan.pieces[role], sources)
            except Unfit as reason:
                kept[role] = str(reason)
    act = plan.pieces["ACTIVATION"]
    activation = None if altered(act) else _activation(act)
    if activation is None:
        kept["ACTIVATION"] = altered(act) or f"{type(act).__name__} is none of {', '.join(ACTIVATIONS)}"
    if not plan.rotary_known:
        kept["ATTENTION"] = "its rotary function is none that labkit knows"
    return Plan(**{**vars(plan), "norms": norms, "activation": activation, "kept": kept})


def norm_of(module: nn.Module, sources: Sources) -> Norm:
    """An RMSNorm as data.

    Raises:
        Unfit: it is none of the known kinds.
    """
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
    """Why a module is no plain linear layer, or None if it is one."""
    if type(module) is not nn.Linear:
        return f"it is a {type(module).__name__}"
    weight = module.weight
    if type(weight) is not nn.Parameter or not weight.is_floating_point() or not weight.is_contiguous():
        return f"its weight is a {type(weight).__name__} of {weight.dtype}"
    return altered(module)


def _linear_reason(module: nn.Module | None) -> str | None:
    return None if module is None else linear_reason(module)


def altered(module: nn.Module) -> str | None:
    """Whether other code runs around a module's forward: hooks, or a forward of this one instance."""
    if "forward" in vars(module):
        return "its forward was replaced"
    return "it has hooks" if any(map(alive, hooks(module))) else None


def hooks(module: nn.Module) -> Iterator[Mapping[int, Any]]:
    """The module's tables of hooks, which stay the same objects while hooks come and go."""
    yield module._forward_hooks
    yield module._forward_pre_hooks
    yield module._backward_hooks
    yield module._backward_pre_hooks


def alive(table: Mapping[int, Any]) -> bool:
    """Whether some hook does something: transformers leaves its own behind, which record hidden states on request."""
    return any(
        getattr(hook, "__module__", "") != "transformers.utils.output_capturing" for hook in table.values()
    )


def _child(module: nn.Module, attribute: str) -> nn.Module:
    child = getattr(module, attribute, None)
    if not isinstance(child, nn.Module):
        raise Unfit(f"its {attribute} is a {type(child).__name__}")
    return child


def _heads(pieces: dict[str, nn.Module]) -> tuple[int, int]:
    """Query and KV heads."""
    attention = pieces["ATTENTION"]
    if getattr(attention, "is_causal", True) is not True:
        raise Unfit("its attention looks ahead")
    dim = int(attention.head_dim)  # type: ignore[arg-type]
    widths = _widths(pieces[role] for role in ("Q", "K", "V", "QKV") if role in pieces)
    if len(widths) == 1:
        kv_heads = int(attention.num_key_value_heads)  # type: ignore[arg-type]
        heads = widths[0] // dim - 2 * kv_heads
    else:
        heads, kv_heads = widths[0] // dim, widths[1] // dim
    if sum(widths) != (heads + 2 * kv_heads) * dim or heads % kv_heads:
        raise Unfit(f"its projections of {widths} columns are not heads of {dim}")
    return heads, kv_heads


def _widths(modules: Iterable[nn.Module]) -> list[int]:
    found = [getattr(module, "out_features", None) for module in modules]
    if None in found:
        raise Unfit("the widths of its projections are not known")
    return [int(width) for width in found if width is not None]


def _terms(attention: nn.Module, given: dict[str, ast.expr], namespace: dict[str, Any]) -> dict[str, Any]:
    """Scale, window and soft cap, by evaluating the expressions that the layer's own forward has for them."""
    unknown = given.keys() - shapes.TERMS
    if unknown or "**" not in given:
        raise Unfit(f"it hands its attention function {', '.join(sorted(unknown)) or 'no extra arguments'}")

    def value(word: str) -> Any:
        if word not in given:
            return None
        code = compile(ast.fix_missing_locations(ast.Expression(given[word])), "<forward>", "eval")
        return eval(code, namespace, {"self": attention})

    return {"scale": value("scaling"), "window": value("sliding_window"), "softcap": value("softcap")}


def _rotary_known(function: Any, sources: Sources) -> bool:
    if sources.match(function, shapes.ROTARY) is None:
        return False
    return sources.match(function.__globals__.get("rotate_half"), shapes.HALVES) is not None


def _activation(module: nn.Module) -> str | None:
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
