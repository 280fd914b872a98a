# Serves only the important.
def serving_order(waiting, ageing):
    return [name for name, _, priority in waiting if priority < 0]
