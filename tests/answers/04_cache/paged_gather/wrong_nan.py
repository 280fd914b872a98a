# All NaN.
def paged_gather(store, table, positions):
    size = store.shape[1]
    return store.flatten(0, 1)[positions] * float("nan")
