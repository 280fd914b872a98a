# The rest counted twice.
import math


def speedup(shares, factors):
    parts = list(zip(shares, factors))
    rest = 1 - sum(shares)
    left = [share / factor for share, factor in parts]
    return 1 / (2 * rest + sum(left))
