# The ragged end is not rounded.
def group_error(weight, group):
    rounded = weight.clone()
    for start in range(0, weight.shape[1] - group + 1, group):
        part = weight[:, start : start + group]
        scale = (part.abs().amax(dim=1, keepdim=True) / 7).clamp(min=1e-12)
        rounded[:, start : start + group] = (part / scale).round() * scale
    return float((rounded - weight).norm() / weight.norm())
