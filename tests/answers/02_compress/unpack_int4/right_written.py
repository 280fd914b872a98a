# Written into an empty tensor.
import torch


def unpack_int4(packed, columns):
    rows, half = packed.shape
    numbers = torch.empty(rows, columns, dtype=torch.int8)
    numbers[:, :half] = (packed & 0x0F).to(torch.int8)
    numbers[:, half:] = (packed[:, : columns - half] >> 4).to(torch.int8)
    return numbers - 8
