"""Inputs on which every typical mistake gives a result of its own, so that a verdict names the right one."""

from collections.abc import Iterable
from itertools import combinations


def tells_apart(mistakes: Iterable[tuple[str, float]], want: float, rel: float = 1e-4) -> bool:
    """Whether no mistake looks like another one, or like the right result.

    Args:
        mistakes: (failure, what that mistake gives); one failure may have several values.
        want: the right result.
        rel: how far apart is far enough, relative to the larger of two results.
    """
    results = [("", want), *mistakes]
    return all(
        abs(one - other) > rel * max(abs(one), abs(other))
        for (first, one), (second, other) in combinations(results, 2)
        if first != second
    )
