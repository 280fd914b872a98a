# A scale for every weight, then all at once.
import torch


def group_error(weight, group):
    columns = weight.shape[1]
    largest = torch.cat([part.abs().amax(1, True).expand(-1, part.shape[1]) for part in weight.split(group, 1)], 1)
    scale = largest.masked_fill(largest == 0, 1) / 7
    apart = (weight / scale).round() * scale - weight
    return float(apart.pow(2).mean() ** 0.5 / weight.pow(2).mean() ** 0.5) if columns else 0.0
