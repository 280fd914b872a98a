# As they come.
def keep_precise(damage, sizes, budget):
    kept = []
    for layer in range(len(sizes)):
        if sizes[layer] <= budget:
            kept.append(layer)
            budget -= sizes[layer]
    return kept
