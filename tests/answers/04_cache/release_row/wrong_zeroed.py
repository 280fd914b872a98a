# Sets every count to zero.
def release_row(table, counts, free):
    for block in table:
        counts[block] = 0
    return counts, free + table
