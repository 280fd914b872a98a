# Looks at the clock only when the next request comes.
def form_batches(arrivals, window, max_batch):
    batches, members, opened = [], [], 0.0
    for index, moment in enumerate(arrivals):
        if members and moment > opened + window:
            batches.append((moment, members))
            members = []
        if not members:
            opened = moment
        members.append(index)
        if len(members) == max_batch:
            batches.append((moment, members))
            members = []
    if members:
        batches.append((opened + window, members))
    return batches
