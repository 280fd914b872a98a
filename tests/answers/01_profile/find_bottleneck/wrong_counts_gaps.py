# Counts gaps instead of adding up their lengths.
def find_bottleneck(host, device):
    blame = {name: 0 for name, _, _ in host}
    reached = idle = 0.0
    for start, stop in device:
        for name, begin, end in host:
            if begin <= reached < end:
                blame[name] += 1
        idle += start - reached
        reached = stop
    return "device" if idle < 0.1 * reached else max(blame, key=blame.get)
