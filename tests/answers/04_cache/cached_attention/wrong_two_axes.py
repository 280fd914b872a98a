# Joins [heads, dim] to [heads, tokens, dim].
import torch


def cached_attention(query, key, value, keys, values):
    keys, values = torch.cat([keys, key], dim=1), torch.cat([values, value], dim=1)
    scores = torch.einsum("hd,htd->ht", query, keys) / query.shape[-1] ** 0.5
    return torch.einsum("ht,htd->hd", scores.softmax(-1), values), keys, values
