# Block and offset change places.
def paged_gather(store, table, positions):
    size = store.shape[1]
    return store.flatten(0, 1)[table[positions % size % len(table)] * size + positions // size]
