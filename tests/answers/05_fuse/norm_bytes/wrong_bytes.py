# The result is written twice.
def norm_bytes(tokens, hidden, element, fused):
    state = tokens * hidden
    numbers = 6 * state + hidden if fused else 7 * state + hidden
    return numbers * element
