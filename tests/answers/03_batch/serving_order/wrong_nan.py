# Not a list.
def serving_order(waiting, ageing):
    return float("nan")
