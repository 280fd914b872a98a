# Needs whole groups.
def group_error(weight, group):
    grouped = weight.reshape(len(weight), -1, group)
    scale = grouped.abs().amax(-1, keepdim=True) / 7
    rounded = (grouped / scale).round() * scale
    return float((rounded - grouped).norm() / weight.norm())
