# VIPs before everybody, always.
def serving_order(waiting, head_start):
    return [name for name, _, _ in sorted(waiting, key=lambda one: (one[2], one[1]))]
