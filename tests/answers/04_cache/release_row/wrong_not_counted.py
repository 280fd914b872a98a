# Frees what only this row held, and counts nothing.
def release_row(table, counts, free):
    return counts, free + [block for block in table if counts[block] == 1]
