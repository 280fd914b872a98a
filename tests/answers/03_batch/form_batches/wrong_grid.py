# Windows on a fixed grid of the clock.
def form_batches(arrivals, window, max_batch):
    batches = {}
    for index, moment in enumerate(arrivals):
        slot = int(moment // window) if window else moment
        batches.setdefault(slot, []).append(index)
    made = []
    for members in batches.values():
        for at in range(0, len(members), max_batch):
            part = members[at : at + max_batch]
            made.append((arrivals[part[0]] + window if len(part) < max_batch else arrivals[part[-1]], part))
    return made
