# Serves only the important.
def serving_order(waiting, head_start):
    return [name for name, _, priority in waiting if priority < 0]
