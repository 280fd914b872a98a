# Takes the last row for the longest.
def padding_share(lengths):
    return 1 - sum(lengths) / (len(lengths) * lengths[-1])
