# Divides by dim, not by its root.
import torch


def cached_attention(query, key, value, keys, values):
    keys = torch.cat([keys, key[:, None]], dim=1)
    values = torch.cat([values, value[:, None]], dim=1)
    scores = torch.einsum("hd,htd->ht", query, keys) / query.shape[-1]
    return torch.einsum("ht,htd->hd", scores.softmax(-1), values), keys, values
