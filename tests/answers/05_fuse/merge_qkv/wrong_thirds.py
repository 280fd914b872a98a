# Equal thirds.
import torch


def merge_qkv(q, k, v):
    weight = torch.cat([q, k, v])
    return weight, [len(weight) // 3] * 3
