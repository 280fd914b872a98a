# Lists of what is read and written.
def norm_bytes(tokens, hidden, element, fused):
    size = {"x": tokens * hidden, "residual": tokens * hidden, "summed": tokens * hidden}
    size |= {"normed": tokens * hidden, "weight": hidden}
    if fused:
        moved = ["x", "residual", "weight", "summed", "normed"]
    else:
        moved = ["x", "residual", "summed", "summed", "weight", "normed"]
    return sum(size[name] * element for name in moved)
