# The share of the memory, and again of the rest.
def largest_batch(memory, share, weights, kv_per_token, context, block_size):
    blocks = -(-context // block_size)
    free = (memory * share - weights) * share
    return int(max(0, free // (blocks * block_size * kv_per_token)))
