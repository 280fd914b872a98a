# Most damage a byte first.
def keep_precise(damage, sizes, budget):
    kept = []
    for layer in sorted(range(len(sizes)), key=lambda layer: -damage[layer] / sizes[layer]):
        if sizes[layer] <= budget:
            kept.append(layer)
            budget -= sizes[layer]
    return kept
