# Vector by vector.
import torch


def int8_kv(x):
    whole = torch.zeros_like(x, dtype=torch.int8)
    scales = torch.zeros(x.shape[:2], dtype=x.dtype)
    for token in range(x.shape[0]):
        for head in range(x.shape[1]):
            largest = max(abs(value) for value in x[token, head].tolist())
            scales[token, head] = largest / 127
            if largest:
                whole[token, head] = (x[token, head] * 127 / largest).round()
    return whole, scales
