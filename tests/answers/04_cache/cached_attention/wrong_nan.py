# All NaN.
import torch


def cached_attention(query, key, value, keys, values):
    keys = torch.cat([keys, key[:, None]], dim=1)
    values = torch.cat([values, value[:, None]], dim=1)
    return torch.full_like(query, float("nan")), keys, values
