# Blames what runs when the gap ends: always the launch.
def find_bottleneck(host, device):
    blame = {name: 0.0 for name, _, _ in host}
    reached = 0.0
    for start, end in device:
        for name, begin, stop in host:
            if begin < start <= stop:
                blame[name] += start - reached
        reached = end
    if sum(blame.values()) < 0.1 * reached:
        return "device"
    return max(blame, key=blame.get)
