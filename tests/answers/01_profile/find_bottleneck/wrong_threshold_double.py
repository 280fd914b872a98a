# Calls the device healthy below 20% of idle time instead of a tenth.
def find_bottleneck(host, device):
    blame = {name: 0.0 for name, _, _ in host}
    reached = 0.0
    for start, stop in device:
        for name, begin, end in host:
            if begin <= reached < end:
                blame[name] += start - reached
        reached = stop
    return "device" if sum(blame.values()) < 0.2 * reached else max(blame, key=blame.get)
