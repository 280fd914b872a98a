# Computes one token, however many are new.
def step_cost(shape, new, past):
    pairs = past + new
    flops = 2 * shape["weights"] + 4 * shape["layers"] * shape["heads"] * shape["head_dim"] * pairs
    cached = 2 * shape["layers"] * shape["kv_heads"] * shape["head_dim"] * (past + new)
    return flops, shape["bytes"] * (shape["weights"] + cached)
