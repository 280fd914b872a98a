# Row by row and group by group, halves up; a tensor with one number.
import torch


def group_error(weight, group):
    wrong = 0.0
    for row in weight:
        for start in range(0, len(row), group):
            part = row[start : start + group]
            scale = part.abs().max() / 7
            if scale > 0:
                wrong += ((part / scale + 0.5).floor() * scale - part).pow(2).sum()
    return torch.sqrt(wrong / weight.pow(2).sum())
