"""How a request wants its tokens chosen, and what choosing them returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from labkit.batch import checks


@dataclass(frozen=True)
class Sampling:
    """How the tokens of one request are chosen.

    Order: repetition penalty, presence and frequency penalty, temperature, top-k, top-p, min-p, as in
    transformers. The most likely token survives every filter.

    Args:
        temperature: 0 takes the most likely token (of equal ones the lowest id); above, logits are divided by it.
        top_k: draw among this many most likely tokens; None, or more than there are, does not limit.
        top_p: draw among the most likely tokens whose probabilities first reach this sum, in (0, 1].
        min_p: drop tokens less probable than this part of the most probable one, 0 to 1.
        repetition_penalty: divides the positive and multiplies the negative logits of tokens that occurred in
            prompt or output (Keskar et al. 2019, transformers); 1 changes nothing.
        presence_penalty: subtracted from the logit of a token that was generated (OpenAI API), −2 to 2.
        frequency_penalty: subtracted once for each time it was generated (OpenAI API), −2 to 2.
        seed: of the draws, 64 bits. None leaves the choice to the engine.
        logprobs: return the chosen token's log-probability and those of this many most likely alternatives.
            They are the model's own: before penalties, temperature and filters. None returns nothing.

    Raises:
        LabkitError: naming the field that is out of range.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    logprobs: int | None = None

    def __post_init__(self) -> None:
        for name, (range_, fits) in NUMBERS.items():
            value = checks.number(f"Sampling: {name}", getattr(self, name), range_, fits)
            object.__setattr__(self, name, value)
        for name, (least, most, none) in COUNTS.items():
            if getattr(self, name) is not None:
                value = checks.count(f"Sampling: {name}", getattr(self, name), least, most, none)
                object.__setattr__(self, name, value)

    @property
    def greedy(self) -> bool:
        """No draw: the largest logit, after penalties, wins."""
        return self.temperature == 0

    @property
    def needs_history(self) -> bool:
        """Some penalty is on, so the tokens so far must be known."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1, 0, 0)

    @property
    def filters(self) -> bool:
        """top-k or top-p is on (they need the tokens in order; min-p does not)."""
        return not self.greedy and (self.top_k is not None or self.top_p < 1)


NUMBERS: dict[str, tuple[str, Callable[[float], bool]]] = {
    "temperature": ("≥ 0", lambda x: x >= 0),
    "top_p": ("above 0 and at most 1", lambda x: 0 < x <= 1),
    "min_p": ("from 0 to 1", lambda x: 0 <= x <= 1),
    "repetition_penalty": ("above 0", lambda x: x > 0),
    "presence_penalty": ("from -2 to 2", lambda x: abs(x) <= 2),
    "frequency_penalty": ("from -2 to 2", lambda x: abs(x) <= 2),
}
SEEDS = -(1 << 63), (1 << 64) - 1
COUNTS = {
    "top_k": (1, 1 << 31, "None does not limit"),
    "seed": (*SEEDS, "None lets the engine choose"),
    "logprobs": (0, 1 << 31, "None returns none"),
}


@dataclass(frozen=True)
class Top:
    """The most likely tokens of each row, best first, equal ones by id.

    Args:
        ids: int64 [n, k], k the largest `logprobs` in the batch; a row uses the first ones it asked for.
        logprobs: float32 [n, k].
    """

    ids: Tensor
    logprobs: Tensor


@dataclass(frozen=True)
class Sampled:
    """One token a row, all on the device.

    Args:
        tokens: int64 [n].
        logprobs: float32 [n], the chosen tokens'; NaN in rows that did not ask. None when no row asked.
        top: the alternatives (0 and NaN in rows that did not ask). None when no row asked for any.
        bad: bool [n], the row's logits hold a NaN or are all −inf, so its token means nothing. None unless
            `check` was set.
    """

    tokens: Tensor
    logprobs: Tensor | None = None
    top: Top | None = None
    bad: Tensor | None = None
