"""What runs a step: the contract, and what comes back of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from labkit.batch.row import Step


@dataclass(frozen=True)
class Drawn:
    """One row's tokens of a step, one for each wanted position; none inside a prompt.

    `bad` says that the logits were not numbers. `logprobs` and `top` are there where the request asked.
    """

    tokens: Sequence[int] = ()
    bad: bool = False
    logprobs: Sequence[float] | None = None
    top: Sequence[dict[int, float]] | None = None


class Flight(Protocol):
    """A step under way."""

    @property
    def step(self) -> Step:
        """What runs."""

    def wait(self) -> Sequence[Drawn]:
        """One entry for each work of the step, in order; waits until they are known."""


class Runner(Protocol):
    """Runs steps on a model, or pretends to.

    `overlaps`: whether `launch` returns before the step is done, so that the next one can be launched behind it.
    """

    overlaps: bool

    def launch(self, step: Step) -> Flight:
        """Start a step: write its tokens' keys and values into their rows' blocks, and draw new tokens."""

    def close(self) -> None:
        """Release the model."""
