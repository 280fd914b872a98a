# Unfused, summed never goes through memory.
def norm_bytes(tokens, hidden, element, fused):
    state = tokens * hidden
    numbers = 4 * state + hidden if fused else 3 * state + hidden
    return numbers * element
