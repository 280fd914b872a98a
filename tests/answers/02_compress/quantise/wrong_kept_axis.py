# Scales [rows, 1].
import torch


def quantise(weight, bits, clip):
    top = 2 ** (bits - 1) - 1
    scales = clip * weight.abs().amax(dim=1, keepdim=True) / top
    scales = torch.where(scales > 0, scales, 1.0)
    numbers = (weight / scales).round().clamp(-top, top)
    return numbers.to(torch.int8), scales, numbers * scales
