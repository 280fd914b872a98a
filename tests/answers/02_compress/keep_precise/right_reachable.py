# Dynamic programming over sums that can be reached.
def keep_precise(damage, sizes, budget):
    best = {0: (0.0, [])}
    for layer, size in enumerate(sizes):
        for taken, (saved, chosen) in list(best.items()):
            new = taken + size
            if new <= budget and saved + damage[layer] > best.get(new, (-1.0, []))[0]:
                best[new] = (saved + damage[layer], [*chosen, layer])
    return max(best.values())[1]
