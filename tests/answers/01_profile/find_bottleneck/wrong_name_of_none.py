# Says that nothing is wrong in its own words.
def find_bottleneck(host, device):
    blame = {name: 0.0 for name, _, _ in host}
    reached = 0.0
    for start, end in device:
        for name, begin, stop in host:
            if begin <= reached < stop:
                blame[name] += start - reached
        reached = end
    if sum(blame.values()) < 0.1 * reached:
        return "none"
    return max(blame, key=blame.get)
