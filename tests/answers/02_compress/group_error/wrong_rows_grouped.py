# Rows share a scale.
import math

import torch


def group_error(weight, group):
    parts = []
    for part in weight.split(group, dim=0):
        scale = part.abs().amax(dim=0, keepdim=True) / 7
        scale = torch.where(scale > 0, scale, 1.0)
        parts.append((part / scale).round() * scale)
    rounded = torch.cat(parts, dim=0)
    return math.sqrt((rounded - weight).square().mean() / weight.square().mean())
