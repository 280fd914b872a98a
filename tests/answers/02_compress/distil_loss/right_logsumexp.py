# Token by token, with logsumexp and xlogy.
import torch


def distil_loss(student, teacher, temperature):
    total = 0
    for s, t in zip(student / temperature, teacher / temperature):
        p = torch.softmax(t, 0)
        total = total + torch.xlogy(p, p).sum() - (p * (s - torch.logsumexp(s, 0))).sum()
    return total / student.shape[0] * temperature**2
