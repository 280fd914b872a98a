# Sample by sample, in float32.
import torch


def taylor_importance(activations, gradients):
    total = torch.zeros(activations.shape[-1])
    for a, g in zip(activations.float(), gradients.float()):
        total += (a * g).sum(0).abs()
    return total / activations.shape[0]
