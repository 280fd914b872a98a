# Forgets what was free.
def release_row(table, counts, free):
    for block in table:
        counts[block] -= 1
    return counts, [block for block in table if counts[block] == 0]
