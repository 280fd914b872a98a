# From the row's end, in place.
def release_row(table, counts, free):
    while table:
        block = table.pop()
        counts[block] -= 1
        if not counts[block]:
            free.insert(0, block)
    return counts, free
