# Groups of the flattened matrix.
import torch


def group_error(weight, group):
    parts = []
    for part in weight.flatten().split(group):
        scale = (part.abs().max() / 7).clamp(min=1e-12)
        parts.append((part / scale).round() * scale)
    return float((torch.cat(parts).view_as(weight) - weight).norm() / weight.norm())
