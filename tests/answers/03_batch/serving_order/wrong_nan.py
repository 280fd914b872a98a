# Not a list.
def serving_order(waiting, head_start):
    return float("nan")
