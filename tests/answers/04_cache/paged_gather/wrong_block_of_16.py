# Block size taken for 16.
def paged_gather(store, table, positions):
    size = store.shape[1]
    return store[table[positions // 16], positions % 16 % size]
