# Side by side.
import torch


def merge_qkv(q, k, v):
    return torch.cat([q, k, v], dim=1), [len(q), len(k), len(v)]
