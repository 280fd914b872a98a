# In float32, whatever came in.
import torch


def merge_qkv(q, k, v):
    return torch.cat([q, k, v]).float(), [len(q), len(k), len(v)]
