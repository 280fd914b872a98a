# Padding over real tokens.
def padding_share(lengths):
    return len(lengths) * max(lengths) / sum(lengths) - 1
