# The weight is forgotten.
def norm_bytes(tokens, hidden, element, fused):
    state = tokens * hidden
    numbers = 4 * state if fused else 5 * state
    return numbers * element
