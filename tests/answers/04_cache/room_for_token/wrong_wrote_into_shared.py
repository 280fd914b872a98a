# Writes into the shared block.
def room_for_token(table, length, counts, free, block_size):
    full = length % block_size == 0
    if not full:
        return table, counts, free, None
    if not free:
        return None
    new = free.pop()
    counts[new] = 1
    if full:
        return [*table, new], counts, free, None
    old, table[-1] = table[-1], new
    counts[old] -= 1
    return table, counts, free, (old, new)
