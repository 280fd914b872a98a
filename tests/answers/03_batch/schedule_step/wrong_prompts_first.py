# Prompts before decodes.
def schedule_step(running, waiting, budget, free_blocks, block_size):
    step, left = [], budget
    for name, prompt, done in sorted(running, key=lambda row: row[2] >= row[1]):
        piece = min(max(1, prompt - done), left)
        if piece > 0:
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
