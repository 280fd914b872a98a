# Adds rows until the next does not fit.
def largest_batch(memory, share, weights, kv_per_token, context, block_size):
    row = len(range(0, context, block_size)) * block_size * kv_per_token
    used, rows = weights, 0
    while used + row <= memory * share:
        used += row
        rows += 1
    return rows
