# One dict, filled from a list of what everybody could use; returned as pairs of lists.
import math


def schedule_step(running, waiting, budget, free_blocks, block_size):
    step = {}
    wishes = [(name, 1) for name, prompt, done in running if done >= prompt]
    wishes += [(name, prompt - done) for name, prompt, done in running if done < prompt]
    for name, prompt in waiting:
        free_blocks -= math.ceil(prompt / block_size)
        if free_blocks < 0:
            break
        wishes.append((name, prompt))
    for name, wish in wishes:
        piece = min(wish, budget - sum(step.values()))
        if piece:
            step[name] = piece
    return [[name, float(piece)] for name, piece in step.items()]
