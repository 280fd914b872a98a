# The padding of the shortest row.
def padding_share(lengths):
    return 1 - min(lengths) / max(lengths)
