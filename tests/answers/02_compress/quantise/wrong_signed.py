# The largest weight, not the largest |weight|.
import torch


def quantise(weight, bits, clip):
    top = 2 ** (bits - 1) - 1
    scales = clip * weight.amax(dim=1) / top
    scales = torch.where(scales > 0, scales, 1.0)
    numbers = (weight / scales[:, None]).round().clamp(-top, top)
    return numbers.to(torch.int8), scales, numbers * scales[:, None]
