# einsum, and a mean as a sum.
import torch


def taylor_importance(activations, gradients):
    change = torch.einsum("stn,stn->sn", activations, gradients)
    return torch.linalg.vector_norm(change, ord=1, dim=0) / len(activations)
