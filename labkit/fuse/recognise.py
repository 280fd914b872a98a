"""What a decoder layer does, read from the sources of its forwards and the kinds of its submodules.

A layer is known by its forward, its attention's and its MLP's (shapes.py). The pieces inside them are known one by
one (pieces.py): one that is not what it seems, a quantised linear layer, a LoRA wrapper, something with hooks, keeps
its place in the layer and is called as it is.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from labkit.fuse import shapes
from labkit.fuse.pieces import ACTIVATIONS, Sources, Unfit, activation_of, altered, linear_reason, norm_of
from labkit.kernels.rms_norm import Norm

LINEARS = ("Q", "K", "V", "QKV", "OUT", "GATE", "UP", "GATE_UP", "DOWN")
NORMS = ("NORM_ATTENTION", "AFTER_ATTENTION", "NORM_MLP", "AFTER_MLP", "Q_NORM", "K_NORM")


@dataclass(frozen=True, eq=False)
class Plan:
    """A recognised layer.

    Attributes:
        name: of the layer in the model.
        pieces: role → submodule, for every role of shapes.py that the layer has.
        where: role → name of the submodule in the model.
        kept: role → why that piece is called as it is; for ATTENTION, why its rotary function is.
        norms: role → norm as data, of those that are known.
        activation: its name, or None where it is not known.
        rotary: the layer's own function.
        terms: scale, window and softcap that the layer hands to attention, as kernels.attention names them.
    """

    name: str
    layer: nn.Module
    pieces: dict[str, nn.Module]
    where: dict[str, str]
    kept: dict[str, str]
    norms: dict[str, Norm]
    activation: str | None
    heads: int
    kv_heads: int
    dim: int
    rotary: Callable[..., tuple[Tensor, Tensor]]
    terms: dict[str, Any]


def recognise(name: str, layer: nn.Module, sources: Sources) -> Plan:
    """What a layer does.

    Raises:
        Unfit: it is none of the known kinds, so that it must be left alone.
    """
    if "forward" in vars(layer):
        raise Unfit("its forward was replaced")
    found = sources.of(layer, shapes.LAYERS)
    for word, value in found.extra["CONTEXT"].items():
        if word != "**" and not (isinstance(value, ast.Name) and value.id == word):
            raise Unfit(f"it hands its attention {word} = {ast.unparse(value)}")
    pieces, where = _children(name, layer, found.roles)
    attention, mlp = pieces["ATTENTION"], pieces["MLP"]
    for part, known in ((attention, shapes.ATTENTIONS), (mlp, shapes.MLPS)):
        if reason := altered(part):
            raise Unfit(f"the fused layer would pass by its {type(part).__name__}, and {reason}")
        inner = sources.of(part, known)
        more, names = _children(where["ATTENTION" if part is attention else "MLP"], part, inner.roles)
        pieces, where = pieces | more, where | names
    for role in ("DROP_ATTENTION", "DROP_MLP"):
        if role in pieces and type(pieces[role]) is not nn.Dropout:
            raise Unfit(f"where others have dropout it has a {type(pieces[role]).__name__}")
    namespace = type(attention).forward.__globals__
    given = sources.of(attention, shapes.ATTENTIONS).extra["TERMS"]
    rotary = namespace["apply_rotary_pos_emb"]
    kept, norms, activation = _known(pieces, sources)
    turn = getattr(rotary, "__globals__", {}).get("rotate_half")
    if sources.match(rotary, shapes.ROTARY) is None or sources.match(turn, shapes.HALVES) is None:
        kept["ATTENTION"] = "its rotary function is none that labkit knows"
    return Plan(
        name, layer, pieces, where, kept, norms, activation, *_heads(pieces), rotary,
        _terms(attention, given, namespace),
    )  # fmt: skip


def _children(
    name: str, module: nn.Module, roles: dict[str, str]
) -> tuple[dict[str, nn.Module], dict[str, str]]:
    """Role → submodule, and role → its name in the model."""
    children = {}
    for role, attribute in roles.items():
        child = getattr(module, attribute, None)
        if not isinstance(child, nn.Module):
            raise Unfit(f"its {attribute} is no module")
        children[role] = child
    return children, {role: f"{name}.{attribute}" for role, attribute in roles.items()}


def _known(
    pieces: dict[str, nn.Module], sources: Sources
) -> tuple[dict[str, str], dict[str, Norm], str | None]:
    """Pieces that are kept, and why; norms; and the activation's name."""
    kept = {role: reason for role in LINEARS if role in pieces and (reason := linear_reason(pieces[role]))}
    norms = {}
    for role in NORMS:
        try:
            if role in pieces:
                norms[role] = norm_of(pieces[role], sources)
        except Unfit as reason:
            kept[role] = str(reason)
    act = pieces["ACTIVATION"]
    activation = None if altered(act) else activation_of(act)
    if activation is None:
        kept["ACTIVATION"] = altered(act) or f"{type(act).__name__} is none of {', '.join(ACTIVATIONS)}"
    return kept, norms, activation


def _heads(pieces: dict[str, nn.Module]) -> tuple[int, int, int]:
    """Query heads, KV heads, and the dimension of each."""
    attention: Any = pieces["ATTENTION"]
    if getattr(attention, "is_causal", True) is not True:
        raise Unfit("its attention looks ahead")
    widths = [getattr(pieces[role], "out_features", 0) for role in ("Q", "K", "V", "QKV") if role in pieces]
    dim = int(attention.head_dim)
    kv_heads = int(attention.num_key_value_heads) if len(widths) == 1 else widths[1] // dim
    heads = sum(widths) // dim - 2 * kv_heads
    counts = (heads, kv_heads, kv_heads) if len(widths) == 3 else (heads + 2 * kv_heads,)
    if [count * dim for count in counts] != widths or not kv_heads or heads % kv_heads:
        raise Unfit(f"its projections of {widths} columns are not heads of {dim}")
    return heads, kv_heads, dim


def _terms(attention: nn.Module, given: dict[str, ast.expr], namespace: dict[str, Any]) -> dict[str, Any]:
    """Scale, window and soft cap, by evaluating the expressions that the layer's own forward has for them."""
    unknown = given.keys() - shapes.TERMS
    if unknown:
        raise Unfit(f"it hands its attention function {', '.join(sorted(unknown))}")

    def value(word: str) -> Any:
        if word not in given:
            return None
        code = compile(ast.fix_missing_locations(ast.Expression(given[word])), "<forward>", "eval")
        try:
            return eval(code, namespace, {"self": attention})
        except Exception as error:  # it may depend on the call
            raise Unfit(f"its {word} = {ast.unparse(given[word])} cannot be known before it runs") from error

    scale = value("scaling")
    if not isinstance(scale, float | int):
        raise Unfit(f"it scales its scores by {scale}")
    return {"scale": scale, "window": value("sliding_window"), "softcap": value("softcap")}
