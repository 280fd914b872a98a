"""What an answer leans on that will not be there when it is graded.

The grader runs an answer with the notebook's set-up imports and without labkit, so a name from another cell of the
course works in the notebook and fails there. The notebook's check warns instead of letting that be a surprise.
"""

import ast
import builtins
import dis
import inspect
import json
import linecache
import types
from collections.abc import Callable, Iterator
from typing import Any

from labkit import paths
from labkit.course.grading import interpret

Missing = dict[str, str]  # name -> "outside" (another cell) or "labkit"


def missing_when_graded(function: Callable[..., Any], notebook: str) -> Missing:
    """Names that `function` uses, directly or through its cell's other functions, and that the grader lacks.

    Args:
        function: the learner's function, as defined in a notebook cell.
        notebook: "01_profile"; its pristine copy says what the set-up cell imports.
    """
    code = getattr(_plain(function), "__code__", None)
    if code is None:
        return {}
    names = _globals_of(function)
    set_up = _set_up_names(notebook)
    if set_up is None:  # without the pristine notebook, any import counts as the set-up cell's
        set_up = {name for name, value in names.items() if isinstance(value, types.ModuleType)}
    there = _bound_in_cell(code.co_filename) | set_up | set(dir(builtins))
    missing: Missing = {}
    for used in _loaded(code, names, set()):
        if used.split(".")[0] == "labkit" or _is_labkits(names.get(used)):
            missing[used] = "labkit"
        elif used not in there:
            missing[used] = "outside"
    return missing


def is_labkits_own(function: Callable[..., Any], reference: Callable[..., Any]) -> bool:
    """Whether an "answer" is labkit's function, handed straight back."""
    plain = _plain(function)
    code = getattr(plain, "__code__", None)
    return (
        plain is reference
        or _is_labkits(plain)
        or (code is not None and code is getattr(reference, "__code__", 0))
    )


def _loaded(code: types.CodeType, names: dict[str, Any], seen: set[types.CodeType]) -> Iterator[str]:
    """Every global that a code object loads, and those of the functions of the same cell that it names."""
    if code in seen:
        return
    seen.add(code)
    steps = list(dis.get_instructions(code))
    own = {step.argval for step in steps if step.opname == "STORE_NAME"}  # of a class body
    for step in steps:
        used = str(step.argval)
        if step.opname == "LOAD_GLOBAL" or (step.opname == "LOAD_NAME" and used not in own | {"__name__"}):
            yield used
            for inner in _codes_behind(names.get(used)):
                if inner.co_filename == code.co_filename:
                    yield from _loaded(inner, names, seen)
        elif step.opname == "IMPORT_NAME" and used.split(".")[0] == "labkit":
            yield used
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _loaded(constant, names, seen)


def _codes_behind(value: Any) -> list[types.CodeType]:
    """The code of a function, or of a class's methods."""
    if isinstance(value, type):
        return [code for member in vars(value).values() for code in _codes_behind(member)]
    code = getattr(value, "__code__", None)
    return [code] if isinstance(code, types.CodeType) else []


def _globals_of(function: Callable[..., Any]) -> dict[str, Any]:
    return getattr(_plain(function), "__globals__", {})


def _plain(function: Callable[..., Any]) -> Any:
    """The function behind decorators, that of a Triton kernel included."""
    return inspect.unwrap(interpret.plain(function))


def _is_labkits(value: Any) -> bool:
    if value is None:
        return False
    home = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
    return isinstance(home, str) and home.split(".")[0] == "labkit"


def _bound_in_cell(filename: str) -> set[str]:
    """Names that the cell compiled under `filename` binds at its top level."""
    return _bound("".join(linecache.getlines(filename)))


def _set_up_names(notebook: str) -> set[str] | None:
    """Names that the set-up cell of the pristine notebook binds; None when the file cannot be read."""
    try:
        content = json.loads((paths.notebooks() / f"{notebook}.ipynb").read_text(encoding="utf-8"))
        cells = [
            cell for cell in content["cells"] if cell["metadata"].get("labkit", {}).get("role") == "setup"
        ]
        sources = ["".join(cell["source"]) for cell in cells]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return set().union(*(_bound(source) for source in sources))


def _bound(source: str) -> set[str]:
    """Names that a cell's top-level statements bind; magics are dropped first."""
    lines = ["" if line.lstrip().startswith(("%", "!")) else line for line in source.splitlines()]
    try:
        tree = ast.parse("\n".join(lines))
    except SyntaxError:
        return set()
    found: set[str] = set()
    for node in tree.body:
        for inner in (
            [node]
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            else ast.walk(node)
        ):
            if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(inner.name)
            elif isinstance(inner, ast.alias):
                found.add((inner.asname or inner.name).split(".")[0])
            elif isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                found.add(inner.id)
    return found
