# Adds the lengths: two kernels at once count twice.
def idle_share(kernels, start, end):
    busy = sum(max(0, min(stop, end) - max(begin, start)) for _, begin, stop in kernels)
    return 1 - busy / (end - start)
