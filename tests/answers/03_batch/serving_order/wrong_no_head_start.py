# A level is worth a second.
def serving_order(waiting, head_start):
    return [name for name, _, _ in sorted(waiting, key=lambda one: one[1] + one[2])]
