# Counts blocks first; whole floats.
import math


def largest_batch(memory, share, weights, kv_per_token, context, block_size):
    pool = (memory * share - weights) // (block_size * kv_per_token)
    return max(0.0, pool // math.ceil(context / block_size))
