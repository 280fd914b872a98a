# Takes or leaves the last layer, and so on.
def keep_precise(damage, sizes, budget):
    def search(layer, left):
        if layer < 0:
            return 0.0, []
        without = search(layer - 1, left)
        if sizes[layer] > left:
            return without
        saved, others = search(layer - 1, left - sizes[layer])
        return max(without, (saved + damage[layer], [layer, *others]))

    return search(len(sizes) - 1, budget)[1]
