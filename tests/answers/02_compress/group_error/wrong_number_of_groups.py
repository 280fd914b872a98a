# That many groups, not groups of that many.
import math

import torch


def group_error(weight, group):
    parts = []
    for part in weight.chunk(group, dim=1):
        scale = part.abs().amax(dim=1, keepdim=True) / 7
        scale = torch.where(scale > 0, scale, 1.0)
        parts.append((part / scale).round() * scale)
    rounded = torch.cat(parts, dim=1)
    return math.sqrt((rounded - weight).square().mean() / weight.square().mean())
