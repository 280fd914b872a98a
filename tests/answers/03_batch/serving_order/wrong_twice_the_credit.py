# Two ageings for a level.
def serving_order(waiting, ageing):
    return [name for name, _, _ in sorted(waiting, key=lambda one: one[1] + 2 * one[2] * ageing)]
