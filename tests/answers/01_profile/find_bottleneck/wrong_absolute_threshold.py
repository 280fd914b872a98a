# Calls a device healthy that idles less than a fixed time, whatever the length of the run.
def find_bottleneck(host, device):
    blame = {name: 0.0 for name, _, _ in host}
    reached = 0.0
    for start, end in device:
        for name, begin, stop in host:
            if begin <= reached < stop:
                blame[name] += start - reached
        reached = end
    if sum(blame.values()) < 1e-3:
        return "device"
    return max(blame, key=blame.get)
