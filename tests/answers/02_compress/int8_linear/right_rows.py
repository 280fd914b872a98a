# Row by row, with int64 sums; all float32.
import torch


def int8_linear(x, weight, weight_scales):
    results = []
    for row in x.float():
        scale = row.abs().max() / 127
        numbers = torch.round(row / scale).clamp(-127, 127) if scale > 0 else torch.zeros_like(row)
        results.append((weight.long() * numbers.long()).sum(1) * scale * weight_scales.float())
    return torch.stack(results)
