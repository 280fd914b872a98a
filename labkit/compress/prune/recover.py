"""Recovery: a short fine-tuning after a cut, with the learning rate falling from 1e-3 to 1e-4.

The rate starts high, since the cut moved the model far from a minimum, and ends low, so that it settles. Weights
are trained in fp32 even where they are stored in 16 bits: a step of 1e-4 of a weight is lost in bf16's rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from labkit.compress.prune.rows import mean_loss, sequence_loss, sequences_of
from labkit.compress.prune.units import check_plain
from labkit.errors import LabkitError
from labkit.models import LM

SCHEDULES = ("cosine", "exponential")


@dataclass(frozen=True)
class Step:
    """One step of training.

    Args:
        step: from 0.
        lr: the learning rate.
        loss: on the step's batch, before the step [nats per token].
        norm: of the gradient, before clipping.
    """

    step: int
    lr: float
    loss: float
    norm: float


@dataclass(frozen=True)
class Recovery:
    """What a training did.

    Args:
        steps: every step.
        held_out: (steps done, loss on text that is not trained on [nats per token]), the first before training.
    """

    steps: tuple[Step, ...]
    held_out: tuple[tuple[int, float], ...]


def learning_rate(
    step: int, steps: int, lr: tuple[float, float], schedule: str = "cosine", warmup: int = 0
) -> float:
    """The rate of a step: up to lr[0] in `warmup` steps, then by half a cosine or exponentially down to lr[1]."""
    if step < warmup:
        return lr[0] * (step + 1) / (warmup + 1)
    done = (step - warmup) / (steps - warmup - 1) if steps - warmup > 1 else 0.0
    if schedule == "cosine":
        return lr[1] + (lr[0] - lr[1]) * (1 + math.cos(math.pi * done)) / 2
    return lr[0] * (lr[1] / lr[0]) ** done


def recover(
    lm: LM,
    tokens: Tensor,
    *,
    steps: int = 200,
    batch: int = 8,
    length: int = 256,
    lr: tuple[float, float] = (1e-3, 1e-4),
    schedule: str = "cosine",
    warmup: int | None = None,
    clip: float = 1.0,
    weight_decay: float = 0.0,
    seed: int = 0,
    held_out: Tensor | None = None,
    every: int = 50,
    autocast: bool = False,
) -> Recovery:
    """Train all weights of a model, in place, by AdamW on windows drawn from training text.

    The model is in evaluation mode throughout: dropout would draw from a state that is not this function's. It comes
    back as it was but for the weights' values, without gradients, also when training is interrupted.

    Args:
        tokens: LongTensor [n] of training text.
        steps: how many; 0 leaves the model alone.
        batch, length: sequences of a step, and tokens of a sequence.
        lr: the highest and the last learning rate. With few or small batches a lower start, such as 3e-4, does better.
        schedule: "cosine" or "exponential".
        warmup: steps in which the rate rises to lr[0]; None means a quarter of the steps, at most 20. AdamW's first
            steps have all weights move alike, which at 1e-3 undoes much of what the cut left.
        clip: the largest norm of the gradient.
        seed: of the windows.
        held_out: LongTensor [m] of text to measure on before the first step, every `every` steps and after the last;
            neither the training text nor the evaluation text.
        autocast: multiply in bf16 (on a GPU).

    Raises:
        LabkitError: settings that make no sense, too few tokens, or a loss that is not finite.
    """
    if (
        schedule not in SCHEDULES
        or steps < 0
        or batch < 1
        or every < 1
        or clip <= 0
        or not lr[0] >= lr[1] > 0
    ):
        raise LabkitError(
            f"Cannot train {steps} steps of {batch} with {schedule} {lr}, clipped at {clip}.",
            'Give steps ≥ 0, batch, every ≥ 1, clip > 0, lr first ≥ last > 0, and "cosine" or "exponential".',
        )
    check_plain(lm)
    flat = sequences_of(lm, tokens, length).flatten()
    rising = min(20, steps // 4) if warmup is None else warmup
    probe = None if held_out is None else sequences_of(lm, held_out, length)
    starts = torch.randint(
        len(flat) - length + 1, (steps, batch), generator=torch.Generator().manual_seed(seed)
    )
    history: list[Step] = []
    measured = [] if probe is None else [(0, mean_loss(lm, probe, batch))]
    with trainable(lm) as weights:
        optimiser = torch.optim.AdamW(weights, lr=lr[0], betas=(0.9, 0.95), weight_decay=weight_decay)
        for step in range(steps):
            for group in optimiser.param_groups:
                group["lr"] = learning_rate(step, steps, lr, schedule, rising)
            ids = torch.stack([flat[start : start + length] for start in starts[step].tolist()])
            loss, norm = _step(lm, ids.to(lm.device), optimiser, weights, clip, autocast)
            history.append(Step(step, optimiser.param_groups[0]["lr"], loss, norm))
            if probe is not None and ((step + 1) % every == 0 or step == steps - 1):
                measured.append((step + 1, mean_loss(lm, probe, batch)))
    return Recovery(tuple(history), tuple(measured))


def _step(
    lm: LM, ids: Tensor, optimiser: torch.optim.Optimizer, weights: list[Any], clip: float, autocast: bool
) -> tuple[float, float]:
    """One step on ids [batch, length]; the loss before it and the norm of its gradient."""
    with torch.enable_grad():
        with torch.autocast(lm.device.type, torch.bfloat16) if autocast else nullcontext():
            loss = sequence_loss(lm, ids).mean()
        loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(weights, clip)
    if not (loss.isfinite() and norm.isfinite()):
        raise LabkitError(
            f"The loss of {lm.name} is no longer finite.", "Lower the first learning rate, or clip more."
        )
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)
    return loss.item(), norm.item()


@contextmanager
def trainable(lm: LM) -> Iterator[list[Any]]:
    """All weights in fp32 or wider and wanting gradients; then as they were stored, without any."""
    weights = list(lm.model.parameters())
    before = [(weight.dtype, weight.requires_grad) for weight in weights]
    lm.model.eval()
    try:
        for weight in weights:
            # the Parameter stays the same object, so tied weights stay tied
            weight.data = weight.data.to(torch.promote_types(weight.dtype, torch.float32))
            weight.requires_grad_(True)
            weight.grad = None
        yield weights
    finally:
        for weight, (dtype, flag) in zip(weights, before, strict=True):
            weight.grad = None
            weight.data = weight.data.to(dtype)
            weight.requires_grad_(flag)
