# Factors averaged by their shares.
import math


def speedup(shares, factors):
    parts = list(zip(shares, factors))
    rest = 1 - sum(shares)
    left = [share / factor for share, factor in parts]
    return rest + sum(s * f for s, f in parts)
