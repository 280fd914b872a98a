# Positions where the table wants entries.
def paged_gather(store, table, positions):
    return store[table[positions], positions % store.shape[1]]
