"""Judging what an answer returned: numbers and dicts of numbers, with a tolerance.

An answer may be right in several forms (an int for a float, a tuple for a list, a one-element tensor);
NaN, infinity, a bool and a text are never a number.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from labkit.course.exercise import expect


def number(value: Any) -> float | None:
    """`value` as a float, or None where it is not one finite number."""
    if value is None or isinstance(value, bool | str | bytes):
        return None
    try:
        result = float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None
    return result if math.isfinite(result) else None


def close(got: Any, want: float, rel: float = 1e-6) -> bool:
    """Whether `got` is a number within `rel` of `want`; near zero, within 1e-9."""
    value = number(got)
    return value is not None and math.isclose(value, want, rel_tol=rel, abs_tol=1e-9)


def judge(
    got: Any, want: float, key: str, typical: Mapping[str, float], *, rel: float = 1e-6, **given: Any
) -> None:
    """Accept `got` where it equals `want`; else raise, naming the typical mistake it equals, if any.

    Args:
        got: what the answer returned. Anything but a finite number raises the failure "form".
        want: the independently computed value.
        key: the failure raised when no typical mistake explains `got`.
        typical: failure key -> the value that mistake would give on this input. A mistake that happens to
            give `want` here is skipped, for the two cannot be told apart.
        rel: relative tolerance.
        given: the input, for the failure's text.
    """
    expect(number(got) is not None, "form", got=got, want=want, **given)
    if close(got, want, rel):
        return
    for mistake, value in typical.items():
        apart = not math.isclose(value, want, rel_tol=rel, abs_tol=1e-9)
        expect(not (apart and close(got, value, rel)), mistake, got=got, want=want, **given)
    expect(False, key, got=got, want=want, **given)


def entries(got: Any, names: Sequence[str], **given: Any) -> list[Any]:
    """The values of a returned dict under `names`; raises the failure "form" where one is missing."""
    expect(isinstance(got, Mapping), "form", got=got, **given)
    for name in names:
        expect(name in got, "form", got=got, **given)
    return [got[name] for name in names]
