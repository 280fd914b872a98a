# Sends the cached tokens through the weights again.
def step_cost(shape, new, past):
    pairs = new * past + new * (new + 1) // 2
    attention = 4 * shape["layers"] * shape["heads"] * shape["head_dim"] * pairs
    cached = 2 * shape["layers"] * shape["kv_heads"] * shape["head_dim"] * (past + new)
    return 2 * shape["weights"] * (past + new) + attention, (shape["weights"] + cached) * shape["bytes"]
