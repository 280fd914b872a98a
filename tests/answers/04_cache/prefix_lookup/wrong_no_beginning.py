# Leaves the first token out.
def prefix_lookup(tokens, published, fingerprint, block_size):
    ends = range(2 * block_size, len(tokens), block_size)
    asked = [tokens[1 : end + 1] for end in ends]
    return [published[fingerprint(one)][0] for one in asked if fingerprint(one) in published]
