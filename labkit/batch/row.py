"""One sample on its way through the engine, and one row's share of a step."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from labkit.batch.request import Request, Sample, Ticket
from labkit.batch.text import TextStream

UNKNOWN = -1
"""Stands for a token that the step in flight has drawn and the host does not know yet."""


class State(Enum):
    """Where a row is."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(eq=False)
class Row:
    """A sample as the scheduler sees it.

    Args:
        number: names its blocks; never used again.
        order: rows are served from the smallest on.
        tokens: prompt and output as far as known.
        seed: of its draws.
        leader: the first sample of the same prompt, whose blocks it may share.
    """

    number: int
    ticket: Ticket
    sample_index: int
    order: tuple[float, int]
    tokens: list[int]
    seed: int
    text: TextStream
    leader: Row | None = None
    state: State = State.WAITING
    slot: int = -1
    launched: int = 0  # positions that have run or are in flight
    stored: int = 0  # positions that have run and stand
    pending: int = 0  # tokens that steps in flight draw and the host does not know yet
    admissions: int = 0  # how often it began, so that a step of an earlier life is recognised

    @property
    def request(self) -> Request:
        """What was asked for."""
        return self.ticket.request

    @property
    def sample(self) -> Sample:
        """What the caller sees."""
        return self.ticket.samples[self.sample_index]

    @property
    def prompt(self) -> int:
        """Tokens of the prompt."""
        return len(self.ticket.prompt)

    @property
    def total(self) -> int:
        """Tokens there will be once every step in flight is known."""
        return len(self.tokens) + self.pending

    @property
    def drawn(self) -> int:
        """Output tokens so far, the one in flight included."""
        return self.total - self.prompt

    @property
    def remaining(self) -> int:
        """Tokens to run; 0 when its last token is in flight."""
        return 0 if self.drawn >= self.request.max_tokens else max(0, self.total - self.launched)

    def __lt__(self, other: Row) -> bool:
        return self.order < other.order


@dataclass(frozen=True)
class Work:
    """One row's share of a step: `count` known tokens from position `start` on, and guesses behind them.

    `wanted` of the last positions give a token each: none inside a prompt, else one more than the guesses.
    `first` is how many output tokens the row had before them.
    """

    row: Row
    start: int
    count: int
    wanted: int
    first: int
    admission: int
    guesses: tuple[int, ...] = ()

    @property
    def stop(self) -> int:
        """The position after the last that runs."""
        return self.start + self.count + len(self.guesses)

    @property
    def tokens(self) -> int:
        """How many tokens run."""
        return self.count + len(self.guesses)

    def ids(self) -> list[int]:
        """The tokens; UNKNOWN where the step in flight is about to draw one."""
        known = self.row.tokens[self.start : self.start + self.count]
        return known + [UNKNOWN] * (self.count - len(known)) + list(self.guesses)

    @property
    def current(self) -> bool:
        """Whether the row is still in the life in which this work was given out."""
        return self.row.state is State.RUNNING and self.row.admissions == self.admission


@dataclass
class Step:
    """What runs together: rows with one token first, then longer chunks."""

    works: list[Work] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.works)

    @property
    def tokens(self) -> int:
        """Tokens of all rows."""
        return sum(work.tokens for work in self.works)
