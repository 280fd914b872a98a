# Takes two away.
def release_row(table, counts, free):
    for block in table:
        counts[block] -= 2
    return counts, free + table
