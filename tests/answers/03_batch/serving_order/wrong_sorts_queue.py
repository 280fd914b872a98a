# The right order, in the caller's own list.
def serving_order(waiting, head_start):
    waiting.sort(key=lambda one: one[1] + one[2] * head_start)
    return [name for name, _, _ in waiting]
