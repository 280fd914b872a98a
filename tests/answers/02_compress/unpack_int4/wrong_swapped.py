# High bits first.
import torch


def unpack_int4(packed, columns):
    stored = torch.cat([packed >> 4, packed & 15], dim=1)
    return stored[:, :columns].to(torch.int8) - 8
