# Asks about the last block only.
def prefix_lookup(tokens, published, fingerprint, block_size):
    found = []
    for end in range(block_size, len(tokens), block_size):
        block, held = published.get(fingerprint(tokens[end - block_size : end]), (None, None))
        if held != tokens[:end]:
            break
        found.append(block)
    return found
