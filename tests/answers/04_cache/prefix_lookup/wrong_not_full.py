# Asks token by token.
def prefix_lookup(tokens, published, fingerprint, block_size):
    found = []
    for end in range(1, len(tokens)):
        block, held = published.get(fingerprint(tokens[:end]), (None, None))
        if held != tokens[:end]:
            break
        found.append(block)
    return found
