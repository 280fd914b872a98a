# Adds a request that nobody sent.
def form_batches(arrivals, window, max_batch):
    batches, first = [], 0
    while first < len(arrivals):
        closes = arrivals[first] + window
        members = [index for index in range(first, len(arrivals)) if arrivals[index] <= closes][:max_batch]
        start = arrivals[members[-1]] if len(members) == max_batch else closes
        batches.append((start, members))
        first = members[-1] + 1
    return batches + [(0.0, [len(arrivals)])]
