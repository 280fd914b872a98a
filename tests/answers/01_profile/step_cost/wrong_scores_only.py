# Counts the scores, but not the weighted sum of the values.
def step_cost(shape, new, past):
    pairs = new * past + new * (new + 1) // 2
    flops = 2 * shape["weights"] * new + 2 * shape["layers"] * shape["heads"] * shape["head_dim"] * pairs
    cached = 2 * shape["layers"] * shape["kv_heads"] * shape["head_dim"] * (past + new)
    return flops, shape["bytes"] * (shape["weights"] + cached)
