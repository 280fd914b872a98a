# Who has waited longest, with credit for priority, at a moment after all arrivals.
def serving_order(waiting, head_start):
    left, order = list(waiting), []
    while left:
        best = max(left, key=lambda one: 1e4 - one[1] - one[2] * head_start)
        left.remove(best)
        order.append(best[0])
    return order
