# The example's answer.
def serving_order(waiting, ageing):
    return ["b", "a", "c"]
