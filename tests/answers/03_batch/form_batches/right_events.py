# One pass over the arrivals, closing what is due before each.
def form_batches(arrivals, window, max_batch):
    batches, members, closes = [], [], None
    for index, moment in enumerate(arrivals):
        if members and moment > closes:
            batches.append((closes, members))
            members = []
        if not members:
            closes = moment + window
        members.append(index)
        if len(members) == max_batch:
            batches.append((moment, members))
            members = []
    if members:
        batches.append((closes, members))
    return batches
