# Byte by byte.
import torch


def pack_int4(numbers):
    half = (numbers.shape[1] + 1) // 2
    packed = torch.zeros(len(numbers), half, dtype=torch.uint8)
    for row, values in enumerate(numbers.tolist()):
        for byte in range(half):
            packed[row, byte] = values[byte] + 8
            if byte + half < len(values):
                packed[row, byte] |= (values[byte + half] + 8) << 4
    return packed
