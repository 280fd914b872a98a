# Counts what lies outside the window.
def idle_share(kernels, start, end):
    reached, idle = start, 0.0
    for _, begin, stop in sorted(kernels, key=lambda kernel: kernel[1]):
        idle += max(0.0, begin - reached)
        reached = max(reached, stop)
    return (idle + end - reached) / (end - start)
