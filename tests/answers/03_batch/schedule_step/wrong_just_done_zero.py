# Decoding begins one token late, and who just finished its prompt runs nothing.
def schedule_step(running, waiting, budget, free_blocks, block_size):
    step = [(name, 1) for name, prompt, done in running if done > prompt]
    left = budget - len(step)
    for name, prompt, done in running:
        piece = min(prompt - done, left)
        if done <= prompt and left:
            step.append((name, piece))
            left -= piece
    for name, prompt in waiting:
        blocks = -(-prompt // block_size)
        if left == 0 or blocks > free_blocks:
            break
        step.append((name, min(prompt, left)))
        left -= step[-1][1]
        free_blocks -= blocks
    return step
