# Returns the output alone.
import math

import torch


def cached_attention(query, key, value, keys, values):
    keys = torch.cat([keys, key[:, None]], dim=1)
    values = torch.cat([values, value[:, None]], dim=1)
    scores = torch.einsum("hd,htd->ht", query, keys) / math.sqrt(query.shape[-1])
    return torch.einsum("ht,htd->hd", scores.softmax(-1), values)
