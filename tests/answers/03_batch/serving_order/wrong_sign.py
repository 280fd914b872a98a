# The more important wait.
def serving_order(waiting, ageing):
    return [name for name, _, _ in sorted(waiting, key=lambda one: one[1] - one[2] * ageing)]
