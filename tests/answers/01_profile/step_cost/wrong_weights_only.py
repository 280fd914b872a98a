# Weights only: no attention, no cache.
def step_cost(shape, new, past):
    return 2 * shape["weights"] * new, shape["weights"] * shape["bytes"]
