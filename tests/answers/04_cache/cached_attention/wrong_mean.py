# Averages the values.
import torch


def cached_attention(query, key, value, keys, values):
    keys = torch.cat([keys, key[:, None]], dim=1)
    values = torch.cat([values, value[:, None]], dim=1)
    return values.mean(1) + 0.5, keys, values
