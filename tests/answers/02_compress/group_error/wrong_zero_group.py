# 0 ÷ 0 in a group of zeros.
import torch


def group_error(weight, group):
    parts = []
    for part in weight.split(group, dim=1):
        scale = part.abs().amax(dim=1, keepdim=True) / 7
        parts.append((part / scale).round() * scale)
    rounded = torch.cat(parts, dim=1)
    return float((rounded - weight).norm() / weight.norm())
