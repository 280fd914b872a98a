# Frees everything that has no holder left, and invents one.
def release_row(table, counts, free):
    for block in table:
        counts[block] -= 1
        if counts[block] == 0:
            free.append(block)
    return counts, [*free, len(counts)]
