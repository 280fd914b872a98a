# Rounds in place.
def group_error(weight, group):
    right = weight.clone()
    for part in weight.split(group, dim=1):
        scale = (part.abs().amax(dim=1, keepdim=True) / 7).clamp(min=1e-12)
        part.div_(scale).round_().mul_(scale)
    return float((weight - right).norm() / right.norm())
