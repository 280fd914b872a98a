"""Fields of requests: refused with their name if they cannot be met, else in the one form the engine works with."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from numbers import Real
from operator import index
from typing import Any

from labkit.errors import LabkitError


def number(what: str, value: object, range_: str, fits: Callable[[float], bool]) -> float:
    """A finite number that fits.

    Args:
        what: names the field, "Sampling: temperature".
        range_: what would fit, in words: "≥ 0".
    """
    try:
        if isinstance(value, Real) and not isinstance(value, bool):
            found = float(value)
            if math.isfinite(found) and fits(found):
                return found
    except OverflowError:
        pass
    raise LabkitError(f"{what} is {_shown(value)}.", f"Give a number {range_}.")


def count(what: str, value: object, least: int, most: int | None = None, none: str = "") -> int:
    """A whole number from `least` to `most`; `none` says what None means where the field may be None."""
    found = _whole(value)
    if found is not None and least <= found and (most is None or found <= most):
        return found
    range_ = f"of at least {least}" if most is None else f"from {least} to {most}"
    raise LabkitError(f"{what} is {_shown(value)}.", f"Give a whole number {range_}{none and '; ' + none}.")


def ids(what: str, value: Any) -> tuple[int, ...]:
    """Token ids as a tuple, from any row of whole numbers (a list, an array, a tensor)."""
    try:
        if not isinstance(value, str | bytes):
            row = value.tolist() if hasattr(value, "tolist") else list(value)
            found = [_whole(token) for token in row]
            if None not in found:
                return tuple(found)  # type: ignore[arg-type]
    except TypeError:
        pass
    raise LabkitError(f"{what} is {_shown(value)}.", "Give token ids: whole numbers in one flat list.")


def texts(what: str, value: Any) -> tuple[str, ...]:
    """Strings, none of them empty, as a tuple."""
    if isinstance(value, str):
        raise LabkitError(f"{what} is one string.", f"Give a list: [{value!r}].")
    found = tuple(value) if isinstance(value, Iterable) and not isinstance(value, bytes) else None
    if found is None or not all(isinstance(text, str) for text in found):
        raise LabkitError(f"{what} is {_shown(value)}.", "Give a list of strings.")
    if "" in found:
        raise LabkitError(f"{what}: an empty string ends every text at once.", "Leave it out.")
    return found


def kind(what: str, value: object, wanted: type, remedy: str) -> None:
    """Refuse what is of another type."""
    if not isinstance(value, wanted):
        raise LabkitError(f"{what} is {_shown(value)}.", remedy)


def _whole(value: Any) -> int | None:
    try:
        return None if isinstance(value, bool) else index(value)
    except TypeError:
        return None


def _shown(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}…"
