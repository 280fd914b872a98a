# Divides by 255.
import torch


def int8_kv(x):
    scales = x.abs().amax(-1) / 255
    steps = x / torch.where(scales == 0, 1.0, scales)[..., None]
    return steps.round().clamp(-127, 127).to(torch.int8), scales
