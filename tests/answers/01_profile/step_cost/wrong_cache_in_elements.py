# Forgets the unit of the cache: the weights in bytes, keys and values in values.
def step_cost(shape, new, past):
    pairs = new * past + new * (new + 1) // 2
    flops = 2 * shape["weights"] * new + 4 * shape["layers"] * shape["heads"] * shape["head_dim"] * pairs
    cached = 2 * shape["layers"] * shape["kv_heads"] * shape["head_dim"] * (past + new)
    return flops, shape["weights"] * shape["bytes"] + cached
