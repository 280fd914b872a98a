# The mean of the groups' own relative errors.
import statistics


def group_error(weight, group):
    errors = []
    for part in weight.split(group, dim=1):
        scale = (part.abs().amax(dim=1, keepdim=True) / 7).clamp(min=1e-12)
        errors.append(float(((part / scale).round() * scale - part).norm() / part.norm()))
    return statistics.mean(errors)
