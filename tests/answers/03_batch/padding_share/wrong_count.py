# How many positions, not which share.
def padding_share(lengths):
    return len(lengths) * max(lengths) - sum(lengths)
