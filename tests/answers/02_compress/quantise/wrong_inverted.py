# The scales are upside down.
import torch


def quantise(weight, bits, clip):
    top = 2 ** (bits - 1) - 1
    scales = top / (clip * weight.abs().amax(dim=1))
    scales = torch.where(scales.isfinite(), scales, 1.0)
    numbers = (weight * scales[:, None]).round().clamp(-top, top)
    return numbers.to(torch.int8), scales, numbers / scales[:, None]
