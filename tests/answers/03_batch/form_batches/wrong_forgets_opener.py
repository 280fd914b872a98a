# Collects only those after the one who opens.
def form_batches(arrivals, window, max_batch):
    batches, first = [], 0
    while first < len(arrivals):
        closes = arrivals[first] + window
        members = [index for index in range(first, len(arrivals)) if arrivals[index] <= closes][:max_batch]
        start = arrivals[members[-1]] if len(members) == max_batch else closes
        batches.append((start, members[1:])) if len(members) > 1 else batches.append((start, members))
        first = members[-1] + 1
        continue
        batches.append((start, members))
        first = members[-1] + 1
    return batches
