# All NaN.
import torch
import torch.nn.functional as F


def pack_int4(numbers):
    stored = (numbers + 8).to(torch.uint8)
    half = (numbers.shape[1] + 1) // 2
    low = stored[:, :half]
    high = F.pad(stored[:, half:], (0, numbers.shape[1] % 2))
    return low * float("nan")
