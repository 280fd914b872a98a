# One scale for each token.
import torch


def int8_kv(x):
    scales = x.abs().amax((1, 2)) / 127
    return (x / scales[:, None, None]).round().to(torch.int8), scales
