# One position too late.
def paged_gather(store, table, positions):
    size = store.shape[1]
    after = positions + 1
    return store[table[after // size % len(table)], after % size]
