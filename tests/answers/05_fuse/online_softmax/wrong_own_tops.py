# Each tile relative to its own top.
import math

import torch


def online_softmax(scores, tile):
    top = torch.full_like(scores[:, 0], -math.inf)
    total = torch.zeros_like(top)
    tops, totals = [], []
    for part in scores.split(tile, dim=-1):
        own = part.amax(dim=-1)
        total = total + torch.exp(part - torch.where(own == -math.inf, 0.0, own)[:, None]).sum(dim=-1)
        top = torch.maximum(top, own)
        tops.append(top)
        totals.append(total)
    return torch.stack(tops, dim=-1), torch.stack(totals, dim=-1)
