# 0 ÷ 0 becomes a value.
import torch


def int8_kv(x):
    scales = x.abs().amax(-1) / 127
    steps = x / scales[..., None]
    return torch.nan_to_num(steps, nan=7.0).round().to(torch.int8), scales
