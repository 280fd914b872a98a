# A batch never holds more than half of what it may.
def form_batches(arrivals, window, max_batch):
    batches, first = [], 0
    while first < len(arrivals):
        closes = arrivals[first] + window
        members = [index for index in range(first, len(arrivals)) if arrivals[index] <= closes][
            : max(1, max_batch // 2)
        ]
        start = closes
        batches.append((start, members))
        first = members[-1] + 1
    return batches
