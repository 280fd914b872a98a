# The smallest first.
def keep_precise(damage, sizes, budget):
    kept = []
    for layer in sorted(range(len(sizes)), key=sizes.__getitem__):
        if sizes[layer] <= budget:
            kept.append(layer)
            budget -= sizes[layer]
    return kept
