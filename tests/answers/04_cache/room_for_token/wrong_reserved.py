# Takes the first block that nobody holds, which is the reserved one.
def room_for_token(table, length, counts, free, block_size):
    full = length % block_size == 0
    if not full and counts[table[-1]] == 1:
        return table, counts, free, None
    if not free:
        return None
    new = counts.index(0)
    counts[new] = 1
    free = [block for block in free if block != new]
    if full:
        return [*table, new], counts, free, None
    old, table[-1] = table[-1], new
    counts[old] -= 1
    return table, counts, free, (old, new)
