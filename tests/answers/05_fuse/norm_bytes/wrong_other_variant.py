# fused the wrong way round.
def norm_bytes(tokens, hidden, element, fused):
    state = tokens * hidden
    numbers = 5 * state + hidden if fused else 4 * state + hidden
    return numbers * element
