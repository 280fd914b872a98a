# Slots: block and offset in one number.
def paged_gather(store, table, positions):
    size = store.shape[1]
    slots = table[positions // size] * size + positions % size
    return store.flatten(0, 1)[slots]
