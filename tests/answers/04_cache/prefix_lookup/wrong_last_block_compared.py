# Compares the tokens of the last block only.
def prefix_lookup(tokens, published, fingerprint, block_size):
    found = []
    for end in range(block_size, len(tokens), block_size):
        block, held = published.get(fingerprint(tokens[:end]), (None, None))
        if held is None or held[-block_size:] != tokens[end - block_size : end]:
            break
        found.append(block)
    return found
