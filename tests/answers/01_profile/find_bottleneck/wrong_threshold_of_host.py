# Takes the tenth of the host's time instead of the device's.
def find_bottleneck(host, device):
    blame = {name: 0.0 for name, _, _ in host}
    reached = 0.0
    for start, stop in device:
        for name, begin, end in host:
            if begin <= reached < end:
                blame[name] += start - reached
        reached = stop
    return "device" if sum(blame.values()) < 0.1 * host[-1][2] else max(blame, key=blame.get)
