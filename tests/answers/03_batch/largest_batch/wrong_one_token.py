# Counts tokens.
import math


def largest_batch(memory, share, weights, kv_per_token, context, block_size):
    free = memory * share - weights
    return max(0, math.floor(free / (kv_per_token)))
