# Reads on from the first block.
def paged_gather(store, table, positions):
    size = store.shape[1]
    return store.flatten(0, 1)[table[0] * size + positions]
