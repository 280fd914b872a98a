# Joined side by side after transposing.
import torch


def merge_qkv(q, k, v):
    return torch.cat([q.T, k.T, v.T], dim=1).T, [each.shape[0] for each in (q, k, v)]
