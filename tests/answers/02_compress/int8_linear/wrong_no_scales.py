# The sums, as floats.
import torch


def int8_linear(x, weight, weight_scales):
    scales = x.abs().amax(dim=1, keepdim=True) / 127
    scales = torch.where(scales > 0, scales, 1.0)
    numbers = (x / scales).round().to(torch.int32)
    return (numbers @ weight.to(torch.int32).T) * 1.0
