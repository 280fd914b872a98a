# NaN scales.
import torch


def int8_kv(x):
    return torch.zeros_like(x, dtype=torch.int8), torch.full(x.shape[:2], float("nan"))
