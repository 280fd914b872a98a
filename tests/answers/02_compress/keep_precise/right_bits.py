# Every choice as the bits of a number; a tuple.
def keep_precise(damage, sizes, budget):
    def total(choice, values):
        return sum(value for layer, value in enumerate(values) if choice >> layer & 1)

    fitting = [choice for choice in range(2 ** len(sizes)) if total(choice, sizes) <= budget]
    best = max(fitting, key=lambda choice: total(choice, damage))
    return tuple(layer for layer in range(len(sizes)) if best >> layer & 1)
