# NaN is taken out again where everything was masked.
import math

import torch


def online_softmax(scores, tile):
    top = torch.full_like(scores[:, 0], -math.inf)
    total = torch.zeros_like(top)
    tops, totals = [], []
    for part in scores.split(tile, dim=-1):
        higher = torch.maximum(top, part.max(dim=-1).values)
        total = (total * (top - higher).exp()).nan_to_num(0.0)
        total = total + (part - higher.unsqueeze(-1)).exp().nan_to_num(0.0).sum(-1)
        top = higher
        tops.append(top)
        totals.append(total)
    return torch.stack(tops, dim=-1), torch.stack(totals, dim=-1)
