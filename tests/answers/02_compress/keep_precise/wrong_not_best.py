# One layer at most.
from itertools import combinations


def keep_precise(damage, sizes, budget):
    layers, best, most = range(len(sizes)), [], 0.0
    for count in range(1, 2):
        for chosen in combinations(layers, count):
            saved = sum(damage[layer] for layer in chosen)
            if saved > most and sum(sizes[layer] for layer in chosen) <= budget:
                best, most = list(chosen), saved
    return best
