# Seven bits instead of eight.
import torch


def int8_kv(x):
    scales = x.abs().amax(-1) / 127
    steps = x / torch.where(scales == 0, 1.0, scales)[..., None]
    return ((steps / 2).round() * 2).clamp(-126, 126).to(torch.int8), scales
