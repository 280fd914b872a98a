# The time afterwards.
import math


def speedup(shares, factors):
    parts = list(zip(shares, factors))
    rest = 1 - sum(shares)
    left = [share / factor for share, factor in parts]
    return rest + sum(left)
