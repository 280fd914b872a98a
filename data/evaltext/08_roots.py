"""Three ways to find where a function crosses zero, and a way to compare them.

Every solver returns a :class:`Solution`, so that the number of function calls
can be compared as well as the answer.
"""

import math
from dataclasses import dataclass
from functools import wraps


class NoConvergence(ArithmeticError):
    """The method gave up; the best guess so far is in ``guess``."""

    def __init__(self, method, guess, steps):
        super().__init__(f"{method}: no root after {steps} steps, stopped at {guess:.6g}")
        self.guess = guess


@dataclass(frozen=True, order=True)
class Solution:
    calls: int
    root: float
    method: str

    def __str__(self):
        return f"{self.method:<10} x = {self.root:.12f}  ({self.calls} calls)"


def counted(solver):
    """Wrap a solver so that it counts how often it evaluates the function."""

    @wraps(solver)
    def wrapper(f, *args, **kwargs):
        calls = 0

        def probe(x):
            nonlocal calls
            calls += 1
            return f(x)

        root = solver(probe, *args, **kwargs)
        return Solution(calls, root, solver.__name__)

    return wrapper


@counted
def bisection(f, low, high, tolerance=1e-12):
    """Halve the bracket until it is narrower than ``tolerance``.

    :param low: left end of the bracket
    :param high: right end; ``f`` must have the other sign here
    :raises ValueError: when both ends lie on the same side of zero
    """
    at_low, at_high = f(low), f(high)
    if at_low == 0:
        return low
    if at_high == 0:
        return high
    if math.copysign(1, at_low) == math.copysign(1, at_high):
        raise ValueError(f"no change of sign between {low} and {high}")
    while high - low > tolerance:
        middle = low + (high - low) / 2
        if middle in (low, high):  # the floats between them are used up
            break
        at_middle = f(middle)
        if at_middle == 0:
            return middle
        if (at_middle < 0) == (at_low < 0):
            low = middle
        else:
            high = middle
    return (low + high) / 2


@counted
def secant(f, first, second, tolerance=1e-12, max_steps=60):
    y_first, y_second = f(first), f(second)
    for _ in range(max_steps):
        slope = y_second - y_first
        if slope == 0:
            raise NoConvergence("secant", second, max_steps)
        first, y_first, second = second, y_second, second - y_second * (second - first) / slope
        if abs(second - first) <= tolerance * max(1.0, abs(second)):
            return second
        y_second = f(second)
    raise NoConvergence("secant", second, max_steps)


@counted
def newton(f, start, derivative, tolerance=1e-12, max_steps=40):
    x = start
    for _ in range(max_steps):
        slope = derivative(x)
        if not slope:
            break
        step = f(x) / slope
        x -= step
        if abs(step) <= tolerance * max(1.0, abs(x)):
            return x
    raise NoConvergence("newton", x, max_steps)


def kepler(eccentricity, mean_anomaly):
    """The equation that tells where a planet is on its ellipse."""
    return lambda angle: angle - eccentricity * math.sin(angle) - mean_anomaly


def demo():
    f = kepler(0.3, 1.0)
    found = [
        bisection(f, 0.0, math.pi),
        secant(f, 1.0, 1.5),
        newton(f, 1.0, lambda angle: 1 - 0.3 * math.cos(angle)),
    ]
    for solution in sorted(found):
        print(solution)
    try:
        newton(lambda x: x * x + 1, 0.5, lambda x: 2 * x)
    except NoConvergence as trouble:
        print("as expected,", trouble)
    spread = max(s.root for s in found) - min(s.root for s in found)
    return min(found).method, spread < 1e-10
