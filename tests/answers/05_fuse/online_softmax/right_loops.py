# Plain Python, one number at a time.
import math

import torch


def online_softmax(scores, tile):
    tops, totals = [], []
    for row in scores.tolist():
        top, total, row_tops, row_totals = -math.inf, 0.0, [], []
        for start in range(0, len(row), tile):
            for score in row[start : start + tile]:
                if score > top:
                    total = total * math.exp(top - score) + 1
                    top = score
                elif score > -math.inf:
                    total += math.exp(score - top)
            row_tops.append(top)
            row_totals.append(total)
        tops.append(row_tops)
        totals.append(row_totals)
    return torch.tensor(tops), torch.tensor(totals)
