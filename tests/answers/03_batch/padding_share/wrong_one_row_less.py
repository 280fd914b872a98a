# Leaves the longest row out of the rectangle.
def padding_share(lengths):
    padding = len(lengths) * max(lengths) - sum(lengths)
    return padding / max(1, (len(lengths) - 1) * max(lengths))
