# Joins along the first axis.
import torch


def cached_attention(query, key, value, keys, values):
    keys = torch.cat([keys, key[:, None]])
    values = torch.cat([values, value[:, None]])
    scores = torch.einsum("hd,htd->ht", query, keys) / query.shape[-1] ** 0.5
    return torch.einsum("ht,htd->hd", scores.softmax(-1), values), keys, values
