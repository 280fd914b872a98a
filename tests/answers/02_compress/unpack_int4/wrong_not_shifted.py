# The high bits stay up.
import torch


def unpack_int4(packed, columns):
    stored = torch.cat([packed & 15, packed & 240], dim=1)
    return stored[:, :columns].to(torch.int8) - 8
