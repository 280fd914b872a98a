# Changes the sum in place, so that all columns are one tensor.
import math

import torch


def online_softmax(scores, tile):
    top = torch.full_like(scores[:, 0], -math.inf)
    total = torch.zeros_like(top)
    tops, totals = [], []
    for part in scores.split(tile, dim=-1):
        higher = torch.maximum(top, part.amax(dim=-1))
        shift = torch.where(higher == -math.inf, 0.0, higher)
        total *= torch.exp(top - shift)
        total += torch.exp(part - shift[:, None]).sum(dim=-1)
        top = higher
        tops.append(top)
        totals.append(total)
    return torch.stack(tops, dim=-1), torch.stack(totals, dim=-1)
