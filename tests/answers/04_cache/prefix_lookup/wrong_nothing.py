# Takes an unknown block for block 0.
def prefix_lookup(tokens, published, fingerprint, block_size):
    found = []
    for end in range(block_size, len(tokens), block_size):
        block, held = published.get(fingerprint(tokens[:end]), (0, tokens[:end]))
        if held != tokens[:end]:
            break
        found.append(block)
    return found
