# torch's own attention over the grown cache.
import torch
import torch.nn.functional as functional


def cached_attention(query, key, value, keys, values):
    keys = torch.cat([keys, key[:, None]], dim=1)
    values = torch.cat([values, value[:, None]], dim=1)
    output = functional.scaled_dot_product_attention(query[:, None], keys, values)
    return output[:, 0], keys, values
