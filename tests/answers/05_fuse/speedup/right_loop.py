# The time is taken down part by part.
def speedup(shares, factors):
    time = 1.0
    for share, factor in zip(shares, factors):
        time -= share
        time += share / factor
    return 1 / time
