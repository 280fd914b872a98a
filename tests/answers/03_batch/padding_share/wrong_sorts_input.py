# Right, but it sorts the caller's list.
def padding_share(lengths):
    lengths.sort()
    return 1 - sum(lengths) / (len(lengths) * lengths[-1])
