# Masks in place.
import torch


def unpack_int4(packed, columns):
    stored = torch.cat([packed >> 4, packed.bitwise_and_(15)], dim=1)
    half = packed.shape[1]
    stored = torch.cat([stored[:, half:], stored[:, :half]], dim=1)
    return stored[:, :columns].to(torch.int8) - 8
