# Only the first part.
import math


def speedup(shares, factors):
    parts = list(zip(shares, factors))
    rest = 1 - sum(shares)
    left = [share / factor for share, factor in parts]
    return 1 / (1 - shares[0] + left[0]) if parts else 1.0
