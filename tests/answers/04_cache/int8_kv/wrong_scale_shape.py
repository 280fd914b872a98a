# Heads first.
import torch


def int8_kv(x):
    scales = x.abs().amax(-1) / 127
    steps = x / torch.where(scales == 0, 1.0, scales)[..., None]
    return steps.round().to(torch.int8), scales.t()
