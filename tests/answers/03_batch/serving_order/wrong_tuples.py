# Returns whole requests.
def serving_order(waiting, ageing):
    return sorted(waiting, key=lambda one: one[1] + one[2] * ageing)
