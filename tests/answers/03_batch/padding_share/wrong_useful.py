# The share of real tokens.
def padding_share(lengths):
    return sum(lengths) / (len(lengths) * max(lengths))
