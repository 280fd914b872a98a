# Everything.
def keep_precise(damage, sizes, budget):
    return list(range(len(sizes)))
