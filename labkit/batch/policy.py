"""When waiting rows may join: the one thing in which the schedulers differ.

A policy only says how many rows may join now. Which ones (by order), whether memory allows it, and what each
row runs in a step are the scheduler's business and the same for all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from labkit.batch import checks
from labkit.errors import LabkitError


@dataclass(frozen=True)
class Queue:
    """What a policy sees.

    Args:
        waiting: rows that wait.
        oldest: when the first of them arrived [s].
        running: rows that run.
        closing: no more requests will come, so that waiting for company is pointless.
    """

    waiting: int
    oldest: float
    running: int
    closing: bool


class Policy(Protocol):
    """Decides how many waiting rows may join. `most` rows at once, further samples of a prompt included."""

    @property
    def most(self) -> int | None:
        """Rows at once; None leaves it to memory."""

    def admit(self, queue: Queue, now: float) -> int:
        """Rows that may join now."""

    def wakes(self, queue: Queue) -> float:
        """When the answer will change though nothing else happens [s]; inf if never."""


@dataclass(frozen=True)
class Continuous:
    """Rows join at any step and leave at any step (iteration-level scheduling: Orca, Yu et al. 2022).

    Args:
        rows: at most so many at once; by default memory alone limits them.

    Raises:
        LabkitError: rows that are no whole number above 0.
    """

    rows: int | None = None

    def __post_init__(self) -> None:
        if self.rows is not None:
            checks.count("Continuous: rows", self.rows, 1, none="None leaves it to memory")

    @property
    def most(self) -> int | None:
        """Its rows."""
        return self.rows

    def admit(self, queue: Queue, now: float) -> int:
        """As many as are waiting, up to the limit."""
        return queue.waiting if self.rows is None else max(0, self.rows - queue.running)

    def wakes(self, queue: Queue) -> float:
        """It never waits for the clock."""
        return math.inf


@dataclass(frozen=True)
class Batches:
    """Whole batches: rows start together, and none joins before the last of them has ended.

    A batch starts when it is full, when its first request has waited for `window`, or when no more will come.

    Args:
        size: rows in a full batch.
        window: seconds that the first waits for company; inf waits until the batch is full.

    Raises:
        LabkitError: a size below one, or a negative window.
    """

    size: int
    window: float = math.inf

    def __post_init__(self) -> None:
        checks.count("Batches: size", self.size, 1)
        if not (isinstance(self.window, int | float) and self.window >= 0):
            raise LabkitError(f"Batches: window is {self.window!r}.", "Give seconds, at least 0.")

    @property
    def most(self) -> int:
        """Its size."""
        return self.size

    def admit(self, queue: Queue, now: float) -> int:
        """A whole batch or nobody."""
        if queue.running or not queue.waiting:
            return 0
        # the same sum as in wakes: a clock set to that moment must find the window over
        due = queue.waiting >= self.size or queue.closing or now >= self.wakes(queue)
        return self.size if due else 0

    def wakes(self, queue: Queue) -> float:
        """When the window of the oldest is over."""
        return queue.oldest + self.window if queue.waiting and not queue.running else math.inf


def one_at_a_time() -> Batches:
    """Each request alone: the plain model behind a queue."""
    return Batches(1)


def static(size: int) -> Batches:
    """Full batches only. Without a full one a request waits for ever: the fault that a window mends."""
    return Batches(size)


def dynamic(size: int, window: float) -> Batches:
    """Batches of up to `size` that start at the latest `window` seconds after their first arrival."""
    return Batches(size, window)
