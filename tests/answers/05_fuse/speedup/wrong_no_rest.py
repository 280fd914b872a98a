# What is in no part is left out.
import math


def speedup(shares, factors):
    parts = list(zip(shares, factors))
    rest = 1 - sum(shares)
    left = [share / factor for share, factor in parts]
    return 1 / (sum(left) or 1)
