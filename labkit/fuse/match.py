"""A forward recognised by its source: its syntax tree laid over that of a known shape.

A shape is Python, written as plainly as the forward it stands for. Three things in it are free:

- Names of local variables, and of the first parameter, as long as they pair up one to one.
- Attributes of `self` in CAPITALS: roles. `self.NORM(x)` fits `self.input_layernorm(h)`, and the match says that
  NORM is `input_layernorm`.
- `f(x, **CAPITALS)`: the call may have more keyword arguments, which the match hands back by name.

Everything else must be the same: constants, order, names of globals and of parameters. Annotations, docstrings
and comments do not count. A decorated or wrapped function never fits, since what is wrapped around is unseen.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

HARMLESS = frozenset(("use_kernel_forward_from_hub", "use_kernelized_func"))
"""Decorators that only give a function a name in a registry."""


@dataclass
class Match:
    """What the free places of a shape stood for.

    Attributes:
        shape: the name of the shape.
        roles: role → attribute of `self`.
        extra: name of an open end → keyword argument → its expression; "**" is a dictionary that is passed on.
    """

    shape: str = ""
    roles: dict[str, str] = field(default_factory=dict)
    extra: dict[str, dict[str, ast.expr]] = field(default_factory=dict)


def match(function: Callable[..., Any], shapes: Iterable[tuple[str, str]]) -> Match | None:
    """The first of some (name, source) shapes that a function fits; None: none, or its source cannot be read."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        return None
    if not isinstance(tree, ast.FunctionDef) or hasattr(function, "__wrapped__"):
        return None
    if any(_decorator(each) not in HARMLESS for each in tree.decorator_list):
        return None
    body = [_Plain().visit(statement) for statement in tree.body]
    if ast.get_docstring(tree) is not None:
        body = body[1:]
    for name, source in shapes:
        walk = _Walk(_parameters(tree), _assigned(body), Match(name))
        if walk.same(ast.parse(textwrap.dedent(source)).body, body):
            return walk.match
    return None


class _Plain(ast.NodeTransformer):
    """Annotations of variables dropped."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        return node if node.value is None else ast.Assign([node.target], node.value)


class _Walk:
    """One comparison of a shape with a function."""

    def __init__(self, parameters: list[str], assigned: set[str], found: Match) -> None:
        own = [name for name in parameters if name != "self"]
        self.free = (assigned - set(own)) | set(own[:1])
        self.there: dict[str, str] = {}
        self.back: dict[str, str] = {}
        self.match = found

    def same(self, shape: Any, actual: Any) -> bool:
        """Whether two trees, lists of trees or constants agree; notes what free places stood for."""
        if isinstance(shape, ast.Name):
            return isinstance(actual, ast.Name) and self._name(shape.id, actual.id)
        if isinstance(shape, ast.Attribute) and shape.attr.isupper() and _of_self(shape):
            fits = isinstance(actual, ast.Attribute) and _of_self(actual)
            return fits and self.match.roles.setdefault(shape.attr, actual.attr) == actual.attr
        if isinstance(shape, ast.Call) and isinstance(actual, ast.Call):
            return self._call(shape, actual)
        if isinstance(shape, ast.AST):
            return type(shape) is type(actual) and all(
                self.same(getattr(shape, name), getattr(actual, name, None))
                for name in shape._fields
                if name not in ("kind", "type_comment")
            )
        if isinstance(shape, list):
            return (
                isinstance(actual, list)
                and len(shape) == len(actual)
                and all(self.same(one, other) for one, other in zip(shape, actual, strict=True))
            )
        return type(shape) is type(actual) and bool(shape == actual)

    def _name(self, shape: str, actual: str) -> bool:
        if actual not in self.free:
            return shape == actual and shape not in self.there
        return self.there.setdefault(shape, actual) == actual and self.back.setdefault(actual, shape) == shape

    def _call(self, shape: ast.Call, actual: ast.Call) -> bool:
        if not (self.same(shape.func, actual.func) and self.same(shape.args, actual.args)):
            return False
        wanted = {word.arg or "**": word.value for word in shape.keywords}
        given = {word.arg or "**": word.value for word in actual.keywords}
        rest = wanted.get("**")
        if isinstance(rest, ast.Name) and rest.id.isupper():
            del wanted["**"]
            self.match.extra[rest.id] = {word: each for word, each in given.items() if word not in wanted}
            given = {word: each for word, each in given.items() if word in wanted}
        return wanted.keys() == given.keys() and all(self.same(wanted[word], given[word]) for word in wanted)


def _of_self(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id == "self"


def _decorator(node: ast.expr) -> str:
    return ast.unparse(node.func if isinstance(node, ast.Call) else node)


def _parameters(tree: ast.FunctionDef) -> list[str]:
    return [each.arg for each in (*tree.args.posonlyargs, *tree.args.args, *tree.args.kwonlyargs)]


def _assigned(body: list[ast.stmt]) -> set[str]:
    names = (node for statement in body for node in ast.walk(statement) if isinstance(node, ast.Name))
    return {name.id for name in names if isinstance(name.ctx, ast.Store)}
