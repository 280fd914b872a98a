# Every arrival starts the window again.
def form_batches(arrivals, window, max_batch):
    batches, members = [], []
    for index, moment in enumerate(arrivals):
        if members and moment > arrivals[members[-1]] + window:
            batches.append((arrivals[members[-1]] + window, members))
            members = []
        members.append(index)
        if len(members) == max_batch:
            batches.append((moment, members))
            members = []
    if members:
        batches.append((arrivals[members[-1]] + window, members))
    return batches
