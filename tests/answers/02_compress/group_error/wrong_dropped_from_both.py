# The ragged end is left out.
def group_error(weight, group):
    whole = weight.shape[1] // group * group or weight.shape[1]
    weight = weight[:, :whole]
    grouped = weight.reshape(len(weight), -1, min(group, whole))
    scale = (grouped.abs().amax(-1, keepdim=True) / 7).clamp(min=1e-12)
    rounded = (grouped / scale).round() * scale
    return float((rounded - grouped).norm() / weight.norm())
