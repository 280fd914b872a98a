# Starts that are no numbers.
def form_batches(arrivals, window, max_batch):
    return [(float("nan"), [index]) for index in range(len(arrivals))] or None
