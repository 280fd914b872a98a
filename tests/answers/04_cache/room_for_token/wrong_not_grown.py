# Grows one token too late.
def room_for_token(table, length, counts, free, block_size):
    full = length % block_size == 1
    if not full and table and counts[table[-1]] == 1:
        return table, counts, free, None
    if not free:
        return None
    new = free.pop()
    counts[new] = 1
    if full:
        return [*table, new], counts, free, None
    return table, counts, free, None
