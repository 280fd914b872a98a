# Divides by a rest that may be nothing.
def speedup(shares, factors):
    rest = round(1 - sum(shares), 9)
    return 1 / rest / (1 + sum(s / f for s, f in zip(shares, factors)) / rest)
