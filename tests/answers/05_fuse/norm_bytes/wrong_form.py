# NaN.
def norm_bytes(tokens, hidden, element, fused):
    state = tokens * hidden
    numbers = float("nan") if fused else float("nan")
    return numbers * element
