# Transposed.
import torch


def merge_qkv(q, k, v):
    return torch.cat([q, k, v]).T, [len(q), len(k), len(v)]
