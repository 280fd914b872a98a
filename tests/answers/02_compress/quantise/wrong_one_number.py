# One scale for the whole matrix, as one number.
import torch


def quantise(weight, bits, clip):
    top = 2 ** (bits - 1) - 1
    scale = clip * weight.abs().max() / top
    numbers = (weight / scale).round().clamp(-top, top)
    return numbers.to(torch.int8), scale, numbers * scale
