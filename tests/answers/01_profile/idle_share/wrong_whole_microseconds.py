# One flag a microsecond: fractions of a microsecond are lost.
def idle_share(kernels, start, end):
    busy = set()
    for _, begin, stop in kernels:
        busy |= set(range(int(begin), int(stop)))
    window = set(range(int(start), int(end)))
    return len(window - busy) / len(window)
