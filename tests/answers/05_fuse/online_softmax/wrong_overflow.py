# The exponentials themselves, and the shift afterwards.
import math

import torch


def online_softmax(scores, tile):
    top = torch.full_like(scores[:, 0], -math.inf)
    total = torch.zeros_like(top)
    tops, totals = [], []
    for part in scores.split(tile, dim=-1):
        higher = torch.maximum(top, part.amax(dim=-1))
        shift = torch.where(higher == -math.inf, 0.0, higher)
        total = total * torch.exp(top - shift) + torch.exp(part).sum(dim=-1) * torch.exp(-shift).clamp(min=1e-300)
        top = higher
        tops.append(top)
        totals.append(total)
    return torch.stack(tops, dim=-1), torch.stack(totals, dim=-1)
