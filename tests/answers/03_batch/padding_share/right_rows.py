# Counts the padding row by row.
def padding_share(lengths):
    longest = max(lengths)
    return sum(longest - length for length in lengths) / (longest * len(lengths))
