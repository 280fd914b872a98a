# By the number of the block; the first free one.
def room_for_token(table, length, counts, free, block_size):
    index = length // block_size
    grow = index == len(table)
    shared = not grow and counts[table[index]] > 1
    if not grow and not shared:
        return table, counts, free, None
    if len(free) == 0:
        return None
    new, *free = free
    counts[new] = 1
    if grow:
        table.append(new)
        return table, counts, free, None
    copy = (table[index], new)
    counts[copy[0]] -= 1
    table[index] = new
    return table, counts, free, copy
