# Only the weight.
import torch


def merge_qkv(q, k, v):
    return torch.cat([q, k, v])
