# A mean over the vocabulary too.
import math

import torch


def distil_loss(student, teacher, temperature):
    log_p = torch.log_softmax(teacher / temperature, dim=-1)
    log_q = torch.log_softmax(student / temperature, dim=-1)
    apart = torch.where(log_p == -math.inf, 0.0, log_p - log_q)
    return temperature**2 * (log_p.exp() * apart).mean()
