# Zeros.
import torch


def int8_linear(x, weight, weight_scales):
    return torch.zeros(len(x), len(weight), dtype=x.dtype)
