"""What a caller asks for, and what comes back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from labkit.batch import checks
from labkit.batch.sampling import Sampling
from labkit.errors import LabkitError

if TYPE_CHECKING:
    from labkit.timing import Latency


class Reason(StrEnum):
    """Why a sample ended."""

    LENGTH = "length"  # max_tokens are out
    EOS = "eos"  # the model's own end-of-text token
    STOP = "stop"  # a stop string or stop id
    CANCELLED = "cancelled"  # the caller no longer wants it
    DEADLINE = "deadline"  # its time ran out
    MEMORY = "memory"  # it outgrew the whole KV pool
    FAILED = "failed"  # the model raised, or gave logits that are not numbers


@dataclass(frozen=True, kw_only=True)
class Request:
    """One prompt and what to make of it.

    Args:
        prompt: token ids (any flat row of whole numbers), or text where the engine has a tokenizer.
        max_tokens: new tokens at most [tokens].
        sampling: how tokens are drawn; greedy by default.
        samples: independent continuations of the one prompt.
        stop: strings that end a sample; they are not part of its text.
        stop_ids: tokens that end a sample; they are the last of its tokens and not part of its text.
        ignore_eos: do not stop at the model's end-of-text token.
        priority: 0 is ordinary, negative goes first, positive may wait.
        deadline: seconds after arrival at which it is given up.
        salt: requests share cached prefixes only with those of the same salt.

    Raises:
        LabkitError: a field that cannot be met, named.
    """

    prompt: str | Sequence[int]
    max_tokens: int = 128
    sampling: Sampling = field(default_factory=Sampling)
    samples: int = 1
    stop: Sequence[str] = ()
    stop_ids: Sequence[int] = ()
    ignore_eos: bool = False
    priority: float = 0.0
    deadline: float | None = None
    salt: str = ""

    def __post_init__(self) -> None:
        prompt = self.prompt if isinstance(self.prompt, str) else checks.ids("Request: prompt", self.prompt)
        if len(prompt) == 0:
            raise LabkitError("The prompt is empty.", "Give text or token ids.")
        checks.kind("Request: sampling", self.sampling, Sampling, "Give a Sampling(…).")
        checks.kind("Request: ignore_eos", self.ignore_eos, bool, "Give True or False.")
        checks.kind("Request: salt", self.salt, str, "Give a string.")
        fields: dict[str, object] = {
            "prompt": prompt,
            "max_tokens": checks.count("Request: max_tokens", self.max_tokens, 1),
            "samples": checks.count("Request: samples", self.samples, 1),
            "stop": checks.texts("Request: stop", self.stop),
            "stop_ids": checks.ids("Request: stop_ids", self.stop_ids),
            "priority": checks.number("Request: priority", self.priority, "that is finite", lambda x: True),
        }
        if self.deadline is not None:
            above = "of seconds from arrival, above 0"
            fields["deadline"] = checks.number("Request: deadline", self.deadline, above, lambda x: x > 0)
        for name, value in fields.items():
            object.__setattr__(self, name, value)


@dataclass
class Sample:
    """One continuation, growing while it runs.

    `logprobs[i]` is the log-probability of `tokens[i]`, `top[i]` the likeliest tokens there with theirs; both
    are empty unless `Sampling.logprobs` asked. `stamps[i]` is when `tokens[i]` was known [s, engine's clock].
    """

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    reason: Reason | None = None
    error: str = ""
    logprobs: list[float] = field(default_factory=list)
    top: list[dict[int, float]] = field(default_factory=list)
    stamps: list[float] = field(default_factory=list)


@dataclass
class Ticket:
    """A submitted request: its samples so far and, once all have a reason, its result.

    `cached_tokens` of the prompt were found in the prefix cache; `preemptions` counts how often it had to make
    room and start over.
    """

    number: int
    request: Request
    prompt: tuple[int, ...]
    arrival: float
    samples: list[Sample]
    cached_tokens: int = 0
    preemptions: int = 0

    @property
    def done(self) -> bool:
        """Every sample has ended."""
        return all(sample.reason is not None for sample in self.samples)

    @property
    def first(self) -> Sample:
        """The first sample, which is the only one unless more were asked for."""
        return self.samples[0]

    def latency(self, sample: int = 0) -> Latency:
        """TTFT, TPOT and the rest of one sample, counted from the request's arrival."""
        from labkit.timing import Latency

        return Latency(self.arrival, tuple(self.samples[sample].stamps))


@dataclass(frozen=True)
class Event:
    """Something new for a caller: tokens and text of one sample, or its end (`reason` is set)."""

    ticket: Ticket
    sample: int
    tokens: tuple[int, ...] = ()
    text: str = ""
    reason: Reason | None = None
