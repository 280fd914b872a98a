# Tokens that are no numbers.
def schedule_step(running, waiting, budget, free_blocks, block_size):
    return [(name, float("nan")) for name, _, _ in running] or None
