# The weight for each token.
def norm_bytes(tokens, hidden, element, fused):
    state = tokens * hidden
    numbers = 5 * state if fused else 6 * state
    return numbers * element
