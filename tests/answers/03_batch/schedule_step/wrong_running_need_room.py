# Nobody with an unfinished prompt runs when memory is short.
def schedule_step(running, waiting, budget, free_blocks, block_size):
    step = [(name, 1) for name, prompt, done in running if done >= prompt]
    left = budget - len(step)
    for name, prompt, done in running:
        piece = min(prompt - done, left)
        if piece > 0 and free_blocks > 10:
            step.append((name, piece))
            left -= piece
    for name, prompt in waiting:
        blocks = -(-prompt // block_size)
        if left == 0 or blocks > free_blocks:
            break
        piece = min(prompt, left)
        step.append((name, piece))
        left -= piece
        free_blocks -= blocks
    return step
