# Where to cut.
import torch


def merge_qkv(q, k, v):
    return torch.cat([q, k, v]), [len(q), len(q) + len(k)]
