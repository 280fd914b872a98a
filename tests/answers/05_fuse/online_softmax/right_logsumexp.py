# The sum through its logarithm.
import math

import torch


def online_softmax(scores, tile):
    top = torch.full_like(scores[:, 0], -math.inf)
    total = torch.zeros_like(top)
    tops, totals = [], []
    for part in scores.split(tile, dim=-1):
        before = torch.where(total > 0, top + total.log(), -math.inf)
        both = torch.logaddexp(before, part.logsumexp(-1))
        top = torch.maximum(top, part.amax(-1))
        total = torch.where(top == -math.inf, 0.0, (both - top).exp()).nan_to_num(0.0)
        tops.append(top)
        totals.append(total)
    return torch.stack(tops, dim=-1), torch.stack(totals, dim=-1)
