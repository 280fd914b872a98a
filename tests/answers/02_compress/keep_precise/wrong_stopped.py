# Stops at the first that does not fit.
def keep_precise(damage, sizes, budget):
    kept = []
    for layer in sorted(range(len(sizes)), key=lambda layer: damage[layer] / sizes[layer], reverse=True):
        if sizes[layer] > budget:
            break
        kept.append(layer)
        budget -= sizes[layer]
    return kept
