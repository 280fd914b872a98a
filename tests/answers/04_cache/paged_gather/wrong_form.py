# Returns whole blocks.
def paged_gather(store, table, positions):
    size = store.shape[1]
    return store[table[positions // size]]
