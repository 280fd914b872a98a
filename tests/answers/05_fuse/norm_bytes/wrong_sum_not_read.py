# Unfused, summed is written and not read.
def norm_bytes(tokens, hidden, element, fused):
    state = tokens * hidden
    numbers = 4 * state + hidden if fused else 4 * state + hidden
    return numbers * element
