# Amdahl part by part, multiplied.
import math


def speedup(shares, factors):
    parts = list(zip(shares, factors))
    rest = 1 - sum(shares)
    left = [share / factor for share, factor in parts]
    return math.prod(1 / (1 - s + s / f) for s, f in parts)
