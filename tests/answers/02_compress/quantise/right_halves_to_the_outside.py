# Exact halves go away from zero, as C rounds.
import torch


def quantise(weight, bits, clip):
    top = 2 ** (bits - 1) - 1
    scales = clip * weight.abs().amax(dim=1) / top
    scales = torch.where(scales > 0, scales, 1.0)
    numbers = (weight.sign() * (weight.abs() / scales[:, None] + 0.5).floor()).clamp(-top, top)
    return numbers.to(torch.int8), scales, numbers * scales[:, None]
