# From the longest down: a beginning counts if the one before it does.
def prefix_lookup(tokens, published, fingerprint, block_size):
    def reach(count):
        if count == 0:
            return []
        before = reach(count - 1)
        beginning = tokens[: count * block_size]
        block, held = published.get(fingerprint(beginning), (0, []))
        return [*before, block] if len(before) == count - 1 and held == beginning else before

    return reach((len(tokens) - 1) // block_size)
