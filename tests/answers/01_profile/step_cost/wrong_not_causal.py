# Counts the full square of new tokens, as if a token could see later ones.
def step_cost(shape, new, past):
    pairs = new * (past + new)
    flops = 2 * shape["weights"] * new + 4 * shape["layers"] * shape["heads"] * shape["head_dim"] * pairs
    cached = 2 * shape["layers"] * shape["kv_heads"] * shape["head_dim"] * (past + new)
    return flops, shape["bytes"] * (shape["weights"] + cached)
