# One token at a time; floats, in a list.
def step_cost(shape, new, past):
    flops = 0.0
    for token in range(new):
        seen = past + token + 1
        for _ in range(shape["layers"]):
            scores = 2.0 * shape["heads"] * shape["head_dim"] * seen
            mixed = 2.0 * shape["heads"] * shape["head_dim"] * seen
            flops += scores + mixed
        flops += 2.0 * shape["weights"]
    row = 2 * shape["layers"] * shape["kv_heads"] * shape["head_dim"] * shape["bytes"]
    return [flops, float(shape["weights"] * shape["bytes"] + row * (past + new))]
