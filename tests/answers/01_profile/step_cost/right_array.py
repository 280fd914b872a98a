# As one numpy array, pairs counted in a mask.
import numpy as np


def step_cost(shape, new, past):
    pairs = np.tri(new, new + past, past).sum()
    flops = 2 * shape["weights"] * new + 4 * shape["layers"] * shape["heads"] * shape["head_dim"] * pairs
    cached = 2 * shape["layers"] * shape["kv_heads"] * shape["head_dim"] * (past + new)
    return np.array([flops, (shape["weights"] + cached) * shape["bytes"]])
