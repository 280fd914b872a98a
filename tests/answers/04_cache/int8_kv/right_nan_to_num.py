# Divides first and mends 0/0 afterwards.
import torch


def int8_kv(x):
    scales = torch.maximum(x.amax(-1), -x.amin(-1)) / 127
    return torch.nan_to_num(x / scales.unsqueeze(-1)).round().char(), scales
