# The fused kernel keeps summed to itself.
def norm_bytes(tokens, hidden, element, fused):
    state = tokens * hidden
    numbers = 3 * state + hidden if fused else 5 * state + hidden
    return numbers * element
