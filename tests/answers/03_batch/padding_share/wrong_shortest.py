# Everything is cut to the shortest.
def padding_share(lengths):
    return 1 - len(lengths) * min(lengths) / sum(lengths)
