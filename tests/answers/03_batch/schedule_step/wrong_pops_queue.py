# The right step, but it empties the caller's queue.
def schedule_step(running, waiting, budget, free_blocks, block_size):
    step = [(name, 1) for name, prompt, done in running if done >= prompt]
    left = budget - len(step)
    for name, prompt, done in running:
        piece = min(prompt - done, left)
        if piece > 0:
            step.append((name, piece))
            left -= piece
    while waiting and left and -(-waiting[0][1] // block_size) <= free_blocks:
        name, prompt = waiting.pop(0)
        step.append((name, min(prompt, left)))
        left -= step[-1][1]
        free_blocks -= -(-prompt // block_size)
    return step
