# Returns whole requests.
def serving_order(waiting, head_start):
    return sorted(waiting, key=lambda one: one[1] + one[2] * head_start)
