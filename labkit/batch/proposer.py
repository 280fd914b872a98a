"""Where guesses at the next tokens come from (speculative decoding, Leviathan et al. 2023).

The engine runs the guesses of a row together with its last token and keeps those that the model itself
would have produced: 1 … k + 1 tokens a step. Draws depend on the seed and the place in the output only, so
what a row says does not depend on the guesses, only how fast it says it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Proposer(Protocol):
    """Guesses tokens."""

    def propose(self, tokens: Sequence[int], most: int) -> Sequence[int]:
        """At most `most` guesses at what follows `tokens` (prompt and output of one row)."""


def accepted(drawn: Sequence[int], guesses: Sequence[int]) -> list[int]:
    """The tokens to keep: what the model drew, up to and including its first difference from the guesses.

    Args:
        drawn: the model's token at each place, one more than the guesses.
        guesses: what was proposed.
    """
    kept = 0
    while kept < len(guesses) and drawn[kept] == guesses[kept]:
        kept += 1
    return list(drawn[: kept + 1])
