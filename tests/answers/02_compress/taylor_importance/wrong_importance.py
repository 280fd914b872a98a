# Through a softmax.
import torch


def taylor_importance(activations, gradients):
    return torch.softmax((activations * gradients).sum(dim=1).abs().mean(dim=0), dim=0)
