# Per cent.
def padding_share(lengths):
    return 100 - 100 * sum(lengths) / (len(lengths) * max(lengths))
