# The whole row first, in order; then the positions.
def paged_gather(store, table, positions):
    size = store.shape[1]
    row = store[table].flatten(0, 1)
    return row[positions]
