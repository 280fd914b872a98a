"""What a distillation is told, and what it tells."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """How to train. The weights are those of the losses in their sum; 0 leaves one out.

    As they stand, a student of 2M parameters takes some 15 s on two CPU cores.

    Args:
        steps, batch, length: optimiser steps, sequences of a step, and tokens of a sequence.
        lr: the highest learning rate, after a warm-up of a tenth of the steps, and the last, down half a cosine.
        clip: the largest norm of the gradient.
        seed: of the order of the text and of the linear maps.
        outputs, hidden, attention: weights of the losses against the teacher.
        labels: weight of the cross-entropy with the true next tokens; with it alone the teacher is not asked.
        temperature: of the outputs' distributions.
        spread: of the temperature by difficulty, 0 to below 1; see `temperatures`.
        curriculum: share of the text, the easiest, that training starts with; 1 means no curriculum.
        every: steps between two measurements on the held-out text.
        held_out: sequences at the end of the text that are only measured on.
    """

    steps: int = 30
    batch: int = 4
    length: int = 128
    lr: tuple[float, float] = (3e-3, 3e-4)
    clip: float = 1.0
    seed: int = 0
    outputs: float = 1.0
    hidden: float = 0.0
    attention: float = 0.0
    labels: float = 0.0
    temperature: float = 2.0
    spread: float = 0.0
    curriculum: float = 1.0
    every: int = 10
    held_out: int = 8

    @property
    def asks_teacher(self) -> bool:
        """Whether a step needs the teacher's forward."""
        return self.outputs > 0 or self.hidden > 0 or self.attention > 0


@dataclass(frozen=True)
class Step:
    """One optimiser step, from 0: its learning rate, and every loss on its batch before the weights, by name."""

    step: int
    lr: float
    losses: dict[str, float]


@dataclass(frozen=True)
class HeldOut:
    """A measurement on text that is not trained on.

    Args:
        step, tokens: optimiser steps and tokens so far.
        bits_per_byte: of the student.
        kl: KL(teacher ‖ student) [nats a token].
    """

    step: int
    tokens: int
    bits_per_byte: float
    kl: float


@dataclass(frozen=True)
class History:
    """What a training did.

    Args:
        steps: every step.
        held_out: the first before training.
        floor: bits per byte of the teacher on the held-out text; None without any.
        tokens: trained on.
        seconds: of everything, measuring and ordering the text for a curriculum included.
    """

    steps: tuple[Step, ...]
    held_out: tuple[HeldOut, ...]
    floor: float | None
    tokens: int
    seconds: float
