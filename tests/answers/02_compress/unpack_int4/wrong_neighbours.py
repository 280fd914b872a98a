# The halves of a byte become neighbours.
import torch


def unpack_int4(packed, columns):
    stored = torch.stack([packed & 15, packed >> 4], dim=2).flatten(1)
    return stored[:, :columns].to(torch.int8) - 8
