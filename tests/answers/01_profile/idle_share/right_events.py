# Count the kernels that run: +1 at a start, -1 at an end.
def idle_share(kernels, start, end):
    steps = [(start, 0), (end, 0)]
    for _, begin, stop in kernels:
        begin, stop = max(begin, start), min(stop, end)
        if begin < stop:
            steps += [(begin, 1), (stop, -1)]
    steps.sort()
    running, busy = 0, 0
    for (time, change), (later, _) in zip(steps, steps[1:]):
        running += change
        if running > 0:
            busy += later - time
    return 1 - busy / (end - start)
