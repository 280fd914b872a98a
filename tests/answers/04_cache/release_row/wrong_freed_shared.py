# Frees every block.
def release_row(table, counts, free):
    for block in table:
        counts[block] -= 1
    return counts, free + table
