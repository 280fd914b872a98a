# The one who found the batch full joins it and the next.
def form_batches(arrivals, window, max_batch):
    batches, first = [], 0
    while first < len(arrivals):
        closes = arrivals[first] + window
        members = [index for index in range(first, len(arrivals)) if arrivals[index] <= closes][:max_batch]
        start = arrivals[members[-1]] if len(members) == max_batch else closes
        members = members + [members[-1] + 1] * (members[-1] + 1 < len(arrivals))
        batches.append((start, members))
        first = max(first + 1, members[-1])
    return batches
