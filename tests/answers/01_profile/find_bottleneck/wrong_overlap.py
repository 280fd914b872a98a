# Blames what covers most of the idle time instead of what the gap began with.
def find_bottleneck(host, device):
    blame = {name: 0.0 for name, _, _ in host}
    reached = 0.0
    for start, end in device:
        for name, begin, stop in host:
            if min(stop, start) > max(begin, reached):
                blame[name] += min(stop, start) - max(begin, reached)
        reached = end
    if sum(blame.values()) < 0.1 * reached:
        return "device"
    return max(blame, key=blame.get)
