# In torch, returned as a one-element tensor.
import torch


def speedup(shares, factors):
    shares = torch.tensor(shares, dtype=torch.float64)
    factors = torch.tensor(factors, dtype=torch.float64)
    return 1 / (1 - shares.sum() + (shares / factors).sum())
