# Hard-coded: the usual suspect.
def find_bottleneck(host, device):
    return "synchronize"
