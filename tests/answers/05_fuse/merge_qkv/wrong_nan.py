# All NaN.
import torch


def merge_qkv(q, k, v):
    return torch.cat([q, k, v]) * float("nan"), [len(q), len(k), len(v)]
