"""Choosing the next token from logits: greedy, or drawn at a temperature from the most likely ones."""

from __future__ import annotations

import torch

from labkit.errors import LabkitError


class Sampler:
    """Picks one token a row. Greedy at temperature 0; otherwise nucleus sampling (Holtzman et al. 2019).

    Args:
        temperature: 0 takes the most likely token; above, logits are divided by it.
        top_p: draw among the most likely tokens whose probabilities first reach this sum.
        seed: of the draws; `restart` begins them again.

    Raises:
        LabkitError: temperature < 0 or top_p not in (0, 1].
    """

    def __init__(self, temperature: float = 0.0, top_p: float = 1.0, seed: int = 0) -> None:
        if temperature < 0 or not 0 < top_p <= 1:
            raise LabkitError(
                f"Temperature {temperature} and top_p {top_p} define no distribution.",
                "Give temperature ≥ 0 and 0 < top_p ≤ 1.",
            )
        self.temperature = temperature
        self.top_p = top_p
        self.seed = seed
        self._generator: torch.Generator | None = None

    def restart(self) -> None:
        """Make the next draws those of a new sampler."""
        self._generator = None

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        """Token ids [rows] from logits [rows, vocab], on the same device."""
        if self.temperature == 0:
            return logits.argmax(dim=-1)
        if self._generator is None:
            self._generator = torch.Generator(device=logits.device).manual_seed(self.seed)
        probabilities = torch.softmax(logits.float() / self.temperature, dim=-1)
        if self.top_p == 1:
            return torch.multinomial(probabilities, 1, generator=self._generator)[:, 0]
        ordered, tokens = probabilities.sort(dim=-1, descending=True)
        before = ordered.cumsum(dim=-1) - ordered  # the first token always stays, whatever top_p is
        kept = ordered.masked_fill(before >= self.top_p, 0.0)
        drawn = torch.multinomial(kept, 1, generator=self._generator)
        return tokens.gather(-1, drawn)[:, 0]
