# Frees a block twice.
def release_row(table, counts, free):
    for block in table:
        counts[block] -= 1
        if counts[block] == 0:
            free += [block, block]
    return counts, free
