# Leaves out the time before the first kernel and after the last one.
def idle_share(kernels, start, end):
    if not kernels:
        return 1.0
    ordered = sorted(kernels, key=lambda kernel: kernel[1])
    reached, idle = ordered[0][2], 0.0
    for _, begin, stop in ordered[1:]:
        idle += max(0.0, min(begin, end) - reached)
        reached = max(reached, min(stop, end))
    return idle / (end - start)
