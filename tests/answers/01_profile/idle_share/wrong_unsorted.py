# Trusts the order of the list.
def idle_share(kernels, start, end):
    reached, idle = start, 0.0
    for _, begin, stop in kernels:
        idle += max(0.0, min(begin, end) - reached)
        reached = max(reached, min(stop, end))
    return (idle + end - reached) / (end - start)
