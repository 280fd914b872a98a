# Hands the budget out one token at a time, last in the list first returned.
def schedule_step(running, waiting, budget, free_blocks, block_size):
    tokens = {name: 1 for name, prompt, done in running if done >= prompt}
    needs = [[name, prompt - done] for name, prompt, done in running if done < prompt]
    for name, prompt in waiting:
        need = (prompt + block_size - 1) // block_size
        if need > free_blocks:
            break
        free_blocks = free_blocks - need
        needs.append([name, prompt])
    for _ in range(budget - len(tokens)):
        for need in needs:
            if need[1]:
                need[1] -= 1
                tokens[need[0]] = tokens.get(need[0], 0) + 1
                break
    return list(tokens.items())[::-1]
