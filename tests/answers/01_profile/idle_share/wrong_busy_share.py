# Returns the busy share.
def idle_share(kernels, start, end):
    reached, idle = start, 0.0
    for _, begin, stop in sorted(kernels, key=lambda kernel: kernel[1]):
        idle += max(0.0, min(begin, end) - reached)
        reached = max(reached, min(stop, end))
    return 1 - (idle + end - reached) / (end - start)
