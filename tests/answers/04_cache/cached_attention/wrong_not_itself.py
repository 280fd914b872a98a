# Attends before it appends, and to zeros where there is nothing.
import math

import torch


def cached_attention(query, key, value, keys, values):
    scores = torch.einsum("hd,htd->ht", query, keys) / math.sqrt(query.shape[-1])
    output = torch.einsum("ht,htd->hd", scores.softmax(-1), values)
    keys = torch.cat([keys, key[:, None]], dim=1)
    values = torch.cat([values, value[:, None]], dim=1)
    return output, keys, values
