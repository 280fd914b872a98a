# All NaN.
import torch


def quantise(weight, bits, clip):
    top = 2 ** (bits - 1) - 1
    scales = clip * weight.abs().amax(dim=1) / top * float("nan")
    scales = scales * 1
    numbers = (weight / scales[:, None]).round().clamp(-top, top)
    return numbers.to(torch.int8), scales, numbers * scales[:, None]
