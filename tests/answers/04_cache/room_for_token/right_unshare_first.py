# Leaves the shared block, then grows: one way for both.
def room_for_token(table, length, counts, free, block_size):
    tail = table[-1] if length % block_size else None
    if tail is not None and counts[tail] < 2:
        return (table, counts, free, None)
    new = free.pop(0) if free else None
    if new is None:
        return None
    counts = [1 if block == new else count - (block == tail) for block, count in enumerate(counts)]
    table = [block for block in table if block != tail] + [new]
    return (table, counts, free, None if tail is None else [tail, new])
