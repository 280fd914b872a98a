# Rounds up.
import math


def largest_batch(memory, share, weights, kv_per_token, context, block_size):
    blocks = -(-context // block_size)
    free = memory * share - weights
    return max(0, math.ceil(free / (blocks * block_size * kv_per_token)))
