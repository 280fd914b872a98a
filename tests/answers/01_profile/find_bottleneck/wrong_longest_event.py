# Blames the longest host activity, which is often a harmless wait for a busy device.
def find_bottleneck(host, device):
    total = {}
    for name, begin, stop in host:
        total[name] = total.get(name, 0.0) + stop - begin
    return max(total, key=total.get)
