# Only what is read.
def norm_bytes(tokens, hidden, element, fused):
    state = tokens * hidden
    numbers = 2 * state + hidden if fused else 3 * state + hidden
    return numbers * element
