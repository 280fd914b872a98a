# Row by row, in a loop.
import torch


def quantise(weight, bits, clip):
    top = (1 << bits - 1) - 1
    numbers, scales = torch.zeros(weight.shape, dtype=torch.int8), []
    for row, values in enumerate(weight):
        scale = float(values.abs().max()) * clip / top or 1.0
        numbers[row] = torch.clip(torch.round(values / scale), -top, top).to(torch.int8)
        scales.append(scale)
    scales = torch.tensor(scales, dtype=weight.dtype)
    return numbers, scales, torch.diag(scales) @ numbers.to(weight.dtype)
