"""How a value looks inside a sentence: short, on one line, the same every time, and never an error."""

import math
import string
from collections.abc import Mapping, Sequence
from typing import Any

ITEMS = 6
CHARACTERS = 160  # of a value
WORDS = 500  # of a piece of text, such as an error's message


def show(value: Any, depth: int = 2) -> str:
    """`value` in a few words: numbers to six digits, containers and tensors cut to their first items.

    Objects that are none of the plain kinds are named by their type, so that no memory address appears.
    """
    if value is None or isinstance(value, bool):
        return repr(value)
    if isinstance(value, int):
        return repr(value) if abs(value) < 10**20 else f"an integer of {value.bit_length()} bits"
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, str | bytes):
        return (
            _cut(repr(value[:CHARACTERS])) if len(value) <= CHARACTERS else f"{value[: CHARACTERS // 2]!r}…"
        )
    if isinstance(value, list | tuple):
        return _sequence(value, depth)
    if isinstance(value, dict):
        return _mapping(value, depth)
    return _array(value) or f"a {type(value).__name__}"


class Filler(string.Formatter):
    """str.format that survives any value; see `labkit.course.texts.fill`."""

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        try:
            return super().get_field(field_name, args, kwargs)
        except Exception:  # an attribute or item that this value does not have, or no such field
            return f"{{{field_name}}}", field_name

    def convert_field(self, value: Any, conversion: Any) -> Any:
        return show(value) if conversion in ("r", "a") else super().convert_field(value, conversion)

    def format_field(self, value: Any, format_spec: str) -> str:
        if isinstance(value, str) and not format_spec:
            return _cut(value, WORDS)
        if format_spec:
            try:
                return _cut(format(value, format_spec))
            except Exception:  # the value is not what the text's author had in mind, which is often the point
                return show(value)
        return show(value)


def _number(value: float) -> str:
    if not math.isfinite(value):
        return repr(value)
    text = f"{value:.6g}"
    return text if any(mark in text for mark in ".e") else f"{text}.0"


def _sequence(value: Sequence[Any], depth: int) -> str:
    opening, closing = "()" if isinstance(value, tuple) else "[]"
    if depth < 0:
        return f"{opening}…{closing}"
    items = [show(item, depth - 1) for item in value[:ITEMS]]
    if len(value) > ITEMS:
        return _cut(f"{opening}{', '.join(items)}, …{closing}") + f" ({len(value)} items)"
    comma = "," if isinstance(value, tuple) and len(items) == 1 else ""
    return _cut(f"{opening}{', '.join(items)}{comma}{closing}")


def _mapping(value: dict[Any, Any], depth: int) -> str:
    if depth < 0:
        return "{…}"
    pairs = [f"{show(key, depth - 1)}: {show(value[key], depth - 1)}" for key in list(value)[:ITEMS]]
    more = f", … ({len(value)} entries)" if len(value) > ITEMS else ""
    return _cut("{" + ", ".join(pairs) + more + "}")


def _array(value: Any) -> str:
    """A tensor or numpy array by its shape, type and first values; "" for anything else."""
    if type(value).__module__.split(".")[0] not in ("torch", "numpy") or not hasattr(value, "shape"):
        return ""
    try:
        kind = str(value.dtype).removeprefix("torch.")
        flat = value.reshape(-1)
        first = [show(item, 0) for item in flat[:ITEMS].tolist()]
        if not tuple(value.shape):
            return f"{first[0]} ({kind} scalar)"
        more = ", …" if math.prod(value.shape) > ITEMS else ""
        return f"{kind}{list(value.shape)} [{', '.join(first)}{more}]"
    except Exception:  # a type rather than an array, or one that cannot be read (meta, sparse)
        return f"a {type(value).__name__}"


def _cut(text: str, limit: int = CHARACTERS) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
