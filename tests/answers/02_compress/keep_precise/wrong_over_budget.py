# Stops after the layer that no longer fits.
def keep_precise(damage, sizes, budget):
    kept = []
    for layer in sorted(range(len(sizes)), key=lambda layer: -damage[layer] / sizes[layer]):
        if budget <= 0:
            break
        kept.append(layer)
        budget -= sizes[layer]
    return kept
