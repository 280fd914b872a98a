# Ties by name.
def serving_order(waiting, head_start):
    return [name for name, _, _ in sorted(waiting, key=lambda one: (one[1] + one[2] * head_start, one[0]))]
