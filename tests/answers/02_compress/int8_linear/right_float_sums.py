# Whole numbers in float64, halves up.
import torch


def int8_linear(x, weight, weight_scales):
    scales = x.abs().max(dim=1).values.clamp(min=1e-30) / 127
    numbers = torch.floor(x / scales[:, None] + 0.5)
    return torch.einsum("ti,oi->to", numbers, weight.double()) * torch.outer(scales, weight_scales)
