# Batched matrix products instead of einsum.
import math

import torch


def cached_attention(query, key, value, keys, values):
    keys = torch.cat([keys, key[:, None]], dim=1)
    values = torch.cat([values, value[:, None]], dim=1)
    scores = (keys @ query[:, :, None]).squeeze(-1) / math.sqrt(query.shape[-1])
    output = (scores.softmax(dim=-1)[:, None] @ values).squeeze(1)
    return output, keys, values
