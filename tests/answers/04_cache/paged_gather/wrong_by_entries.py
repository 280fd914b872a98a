# Divides by the number of entries.
def paged_gather(store, table, positions):
    return store[table[positions // len(table)], positions % store.shape[1]]
