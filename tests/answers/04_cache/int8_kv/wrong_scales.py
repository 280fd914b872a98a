# Scales from the mean.
import torch


def int8_kv(x):
    scales = x.abs().mean(-1) / 40
    steps = x / torch.where(scales == 0, 1.0, scales)[..., None]
    return steps.round().clamp(-127, 127).to(torch.int8), scales
