# Bits.
def norm_bytes(tokens, hidden, element, fused):
    state = tokens * hidden
    numbers = 4 * state + hidden if fused else 5 * state + hidden
    return numbers * element * 8
