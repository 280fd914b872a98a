# Groups of the largest size; the clock plays no part.
def form_batches(arrivals, window, max_batch):
    groups = [list(range(a, min(a + max_batch, len(arrivals)))) for a in range(0, len(arrivals), max_batch)]
    return [(arrivals[one[-1]], one) for one in groups]
