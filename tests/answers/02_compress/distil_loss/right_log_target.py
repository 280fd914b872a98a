# log_target, infinite logits made finite; float32.
import torch
import torch.nn.functional as F


def distil_loss(student, teacher, temperature):
    teacher = teacher.float().clamp(min=-1e30)
    have, wanted = (torch.log_softmax(each / temperature, -1) for each in (student.float(), teacher))
    return F.kl_div(have, wanted, log_target=True, reduction="sum") / len(student) * temperature**2
