# Two's complement.
import torch


def unpack_int4(packed, columns):
    stored = torch.cat([packed & 15, packed >> 4], dim=1)[:, :columns].to(torch.int8)
    return torch.where(stored > 7, stored - 16, stored)
