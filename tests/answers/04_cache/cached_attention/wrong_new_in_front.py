# Puts the new token first.
import math

import torch


def cached_attention(query, key, value, keys, values):
    keys = torch.cat([key[:, None], keys], dim=1)
    values = torch.cat([value[:, None], values], dim=1)
    scores = torch.einsum("hd,htd->ht", query, keys) / math.sqrt(query.shape[-1])
    return torch.einsum("ht,htd->hd", scores.softmax(-1), values), keys, values
