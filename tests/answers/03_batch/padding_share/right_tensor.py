# As a mask in torch.
import torch


def padding_share(lengths):
    lengths = torch.tensor(lengths)
    positions = torch.arange(int(lengths.max()))
    mask = positions[None, :] < lengths[:, None]
    return (~mask).double().mean()
