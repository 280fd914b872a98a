# Only what is written.
def norm_bytes(tokens, hidden, element, fused):
    state = tokens * hidden
    numbers = 2 * state if fused else 2 * state
    return numbers * element
