# Stacked.
import torch


def merge_qkv(q, k, v):
    return torch.stack([q, k, v]).flatten(0, 1), [len(q), len(k), len(v)]
