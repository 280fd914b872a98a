# Looks at the first block only.
def prefix_lookup(tokens, published, fingerprint, block_size):
    found = []
    for end in range(block_size, min(len(tokens), 2 * block_size), block_size):
        block, held = published.get(fingerprint(tokens[:end]), (None, None))
        if held != tokens[:end]:
            break
        found.append(block)
    return found
