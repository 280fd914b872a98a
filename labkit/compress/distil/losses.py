"""What a student is asked to match: the teacher's output distributions, its hidden states, its attention maps.

Each loss is a mean over tokens, 0 when student and teacher say the same, and computed in fp32 or wider. Only the
student's side is meant to carry gradients.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from labkit.errors import LabkitError


def outputs(
    student: Tensor, teacher: Tensor, temperature: float | Tensor = 1.0, mask: Tensor | None = None
) -> Tensor:
    """T² · KL(teacher ‖ student) of distributions softened by a temperature [nats a token].

    Softening by T divides gradients by about T²; the factor keeps their size (Hinton, Vinyals & Dean 2015,
    "Distilling the Knowledge in a Neural Network").

    Args:
        student, teacher: logits [..., tokens, vocabulary]. Where the teacher's is −inf, the term is 0.
        temperature: above 0; one for all, or [..., tokens] (whose values are not checked: a device would have to wait).
        mask: bool [..., tokens], True where a token counts; None means all.

    Raises:
        LabkitError: shapes differ, a temperature is not above 0, or no token counts.
    """
    _same(student.shape, teacher.shape)
    if not isinstance(temperature, Tensor) and not temperature > 0:
        raise LabkitError(
            f"{temperature} is no temperature.", "Give one above 0; 1 leaves distributions as they are."
        )
    heat = torch.as_tensor(temperature, dtype=_wide(student))
    per_token = heat[..., None] if heat.ndim else heat
    log_p = (teacher.to(heat.dtype) / per_token).log_softmax(-1)
    log_q = (student.to(heat.dtype) / per_token).log_softmax(-1)
    return mean(heat**2 * _divergence(log_p, log_q), mask)


def labels(student: Tensor, targets: Tensor, mask: Tensor | None = None) -> Tensor:
    """Cross-entropy with the true next tokens [nats a token]: training without a teacher.

    Args:
        student: logits [..., tokens, vocabulary].
        targets: LongTensor [..., tokens].
    """
    return mean(token_losses(student, targets), mask)


def token_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Minus the log probability of each true next token [..., tokens]: of a teacher's logits, how hard it is."""
    _same(logits.shape[:-1], targets.shape)
    rows = logits.to(_wide(logits)).flatten(0, -2)
    return functional.cross_entropy(rows, targets.flatten(), reduction="none").view(targets.shape)


def hidden(
    student: Tensor, teacher: Tensor, linear: nn.Module | None = None, mask: Tensor | None = None
) -> Tensor:
    """Squared distance of hidden states scaled to length 1: 0 when they point alike, 4 when opposite.

    A learned linear map takes the student's width to the teacher's (Romero et al. 2014, "FitNets"). Lengths are left
    out since they differ from layer to layer by far more than what is said (Sun et al. 2019, "Patient Knowledge
    Distillation for BERT Model Compression").

    Args:
        student: [..., tokens, width of the student].
        teacher: [..., tokens, width of the teacher].
        linear: the map, trained along with the student; None where the widths are equal.
        mask: as in `outputs`.

    Raises:
        LabkitError: after the map the shapes still differ, or no token counts.
    """
    mapped = student if linear is None else linear(student)
    _same(mapped.shape, teacher.shape)
    ours, theirs = (functional.normalize(each.to(_wide(student)), dim=-1) for each in (mapped, teacher))
    return mean((ours - theirs).square().sum(-1), mask)


def attention(student: Tensor, teacher: Tensor, mask: Tensor | None = None) -> Tensor:
    """KL(teacher ‖ student) of attention maps [nats a query], a mean over the student's heads.

    Each head of the student is held against the mean map of a group of the teacher's: head i of H against heads
    i·G … (i + 1)·G − 1, where G = teacher's heads / H. That attention is worth imitating is from Jiao et al. 2019,
    "TinyBERT", who match scores by squared error; the divergence of maps is from Wang et al. 2020, "MiniLM".

    Args:
        student: probabilities [batch, heads, queries, keys]; 0 where a key is out of sight.
        teacher: [batch, G · heads, queries, keys].
        mask: bool [batch, queries], True where a query counts; None means all.

    Raises:
        LabkitError: the heads do not make groups, other sizes differ, or no query counts.
    """
    heads = student.shape[1]
    if teacher.shape[1] % heads:
        raise LabkitError(
            f"{teacher.shape[1]} heads of a teacher make no groups for {heads} of a student.",
            "Give the student a number of heads that divides the teacher's.",
        )
    wanted = teacher.to(_wide(student)).unflatten(1, (heads, -1)).mean(2)
    _same(student.shape, wanted.shape)
    given = student.to(wanted.dtype)
    # a probability that rounds to 0 costs what the smallest number of its kind does, not infinity
    floor = torch.finfo(student.dtype).tiny
    return mean(_divergence(wanted.log(), given.clamp_min(floor).log()).mean(1), mask)


def matching(student_layers: int, teacher_layers: int) -> tuple[int, ...]:
    """The teacher's layer, from 0, that each of the student's answers to: evenly spread, the last to the last.

    Raises:
        LabkitError: no layers, or more than the teacher has.
    """
    if not 1 <= student_layers <= teacher_layers:
        raise LabkitError(
            f"A student of {student_layers} layers does not match a teacher of {teacher_layers}.",
            f"Give it 1 to {teacher_layers} layers.",
        )
    return tuple((index + 1) * teacher_layers // student_layers - 1 for index in range(student_layers))


def mean(values: Tensor, mask: Tensor | None = None) -> Tensor:
    """The mean of values [..., tokens] where a bool mask of their shape holds.

    Raises:
        LabkitError: the mask has another shape, or holds nowhere.
    """
    if mask is None:
        return values.mean()
    _same(values.shape, mask.shape)
    if not bool(mask.any()):
        raise LabkitError("No token counts.", "Give a mask that is True somewhere.")
    return values[mask].mean()  # what is left out may even be NaN


def _divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Σ p · (log p − log q) over the last axis, where p = 0 adds nothing and no gradient."""
    absent = log_p == -torch.inf
    gap = log_p.masked_fill(absent, 0.0) - log_q.masked_fill(absent, 0.0)
    return (log_p.exp() * gap).sum(-1)


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


def _same(ours: torch.Size, theirs: torch.Size) -> None:
    if ours != theirs:
        raise LabkitError(
            f"Shapes differ: {list(ours)} and {list(theirs)}.",
            "Student and teacher must see the same tokens with the same vocabulary; other widths need a linear map.",
        )
