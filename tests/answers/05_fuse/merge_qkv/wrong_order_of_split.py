# Sizes in the order of k, v, q.
import torch


def merge_qkv(q, k, v):
    return torch.cat([q, k, v]), [len(k), len(v), len(q)]
