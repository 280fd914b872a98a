# Counts blocks instead of ends.
def prefix_lookup(tokens, published, fingerprint, block_size):
    blocks = []
    while (len(blocks) + 1) * block_size < len(tokens):
        beginning = tokens[: (len(blocks) + 1) * block_size]
        entry = published.get(fingerprint(beginning))
        if entry is None or list(entry[1]) != beginning:
            return blocks
        blocks.append(entry[0])
    return blocks
