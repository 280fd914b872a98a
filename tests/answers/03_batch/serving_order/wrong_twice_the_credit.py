# Two head starts for a level.
def serving_order(waiting, head_start):
    return [name for name, _, _ in sorted(waiting, key=lambda one: one[1] + 2 * one[2] * head_start)]
