# Forgets the gap before the first kernel: a slow tokenizer is never found.
def find_bottleneck(host, device):
    blame = {name: 0.0 for name, _, _ in host}
    reached = device[0][1]
    for start, end in device[1:]:
        for name, begin, stop in host:
            if begin <= reached < stop:
                blame[name] += start - reached
        reached = end
    if sum(blame.values()) < 0.1 * reached:
        return "device"
    return max(blame, key=blame.get)
