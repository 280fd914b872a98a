# The fused variant saves one array.
def norm_bytes(tokens, hidden, element, fused):
    state = tokens * hidden
    numbers = 5 * state + hidden - state if fused else 5 * state + hidden
    return numbers * element
