# Head by head, with a softmax written out.
import torch


def cached_attention(query, key, value, keys, values):
    keys = torch.cat([keys, key[:, None]], dim=1)
    values = torch.cat([values, value[:, None]], dim=1)
    rows = []
    for head in range(len(query)):
        scores = keys[head] @ query[head] / query.shape[-1] ** 0.5
        weights = torch.exp(scores - scores.max())
        rows.append(weights / weights.sum() @ values[head])
    return torch.stack(rows), keys, values
