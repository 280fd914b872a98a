# Looks the host event up by bisection, and decides by the busy time.
from bisect import bisect_right
from collections import Counter


def find_bottleneck(host, device):
    begins = [begin for _, begin, _ in host]
    total = device[-1][1]
    busy = sum(end - start for start, end in device)
    if busy > 0.9 * total:
        return "device"
    edges = [(0.0, 0.0)] + list(device)
    blame = Counter()
    for (_, before), (after, _) in zip(edges, edges[1:]):
        name, _, _ = host[bisect_right(begins, before) - 1]
        blame[name] += after - before
    return blame.most_common(1)[0][0]
