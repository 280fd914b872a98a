# Never says that the device itself is busy throughout.
def find_bottleneck(host, device):
    blame = {name: 0.0 for name, _, _ in host}
    reached = 0.0
    for start, end in device:
        for name, begin, stop in host:
            if begin <= reached < stop:
                blame[name] += start - reached
        reached = end
    return max(blame, key=blame.get)
