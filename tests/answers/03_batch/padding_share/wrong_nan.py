# Not a number.
def padding_share(lengths):
    return float("nan")
