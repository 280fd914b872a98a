"""How much of a change in quality could be chance: the paired bootstrap.

Both models see the same windows, and most of the spread between windows is their difficulty, which a
difference taken window by window cancels. Tokens of one window are not independent, so windows are drawn,
not tokens. (Koehn 2004, "Statistical Significance Tests for Machine Translation Evaluation"; percentile
interval as in Efron and Tibshirani 1993.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from labkit.errors import LabkitError
from labkit.quality.scoring import Score

BATCH = 1 << 22
"""Drawn indices held at a time."""


@dataclass(frozen=True)
class Interval:
    """A change (after − before) and the interval that holds it with the stated confidence."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:+.4f} [{self.low:+.4f}, {self.high:+.4f}]"


def paired_bootstrap(
    a: Sequence[float] | torch.Tensor,
    b: Sequence[float] | torch.Tensor,
    *,
    weights: Sequence[float] | torch.Tensor | None = None,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """The interval of the mean of b − a, where a[i] and b[i] were measured on the same thing.

    Args:
        a: the values before, [n] with n ≥ 2, one per window (or per request, per document, …).
        b: the values after.
        weights: [n] ≥ 0, such as the bytes of each window; the mean is then sum(w (b − a)) / sum(w).
        confidence: of the interval, 0 to 1.
        resamples: how often to draw n pairs with replacement.
        seed: the same seed gives the same interval.

    Raises:
        LabkitError: lengths differ, fewer than two pairs, or values that are not finite.
    """
    before, after = (torch.as_tensor(values, dtype=torch.float64).flatten().cpu() for values in (a, b))
    weight = (
        torch.ones_like(before) if weights is None else torch.as_tensor(weights, dtype=torch.float64).cpu()
    )
    if not len(before) == len(after) == len(weight) or len(before) < 2:
        raise LabkitError(
            f"{len(before)} values before, {len(after)} after and {len(weight)} weights make no pairs.",
            "Give the same number of each, at least two.",
        )
    if not all(values.isfinite().all() for values in (before, after, weight)) or weight.min() < 0:
        raise LabkitError(
            "Values must be finite and weights not negative.", "Look for NaN in what was measured."
        )
    if not 0 < confidence < 1 or resamples < 1 or weight.sum() <= 0:
        raise LabkitError(
            f"No interval of confidence {confidence} comes from {resamples} resamples.",
            "Give 0 < confidence < 1, at least one resample and some positive weight.",
        )
    difference = weight * (after - before)
    means = _resampled_means(difference, weight, resamples, seed)
    tail = (1 - confidence) / 2
    low, high = torch.quantile(means, torch.tensor([tail, 1 - tail], dtype=torch.float64)).tolist()
    return Interval((difference.sum() / weight.sum()).item(), low, high)


def change(before: Score, after: Score, *, confidence: float = 0.95, seed: int = 0) -> Interval:
    """The change in bits per byte between two models' scores of the same text and windows.

    Raises:
        LabkitError: the windows are not the same.
    """
    (first, size), (second, other) = before.per_window(), after.per_window()
    if not torch.equal(size, other):
        raise LabkitError(
            "The two scores are of different windows.",
            "Score both models on the same text with the same tokenizer, context and stride.",
        )
    return paired_bootstrap(first, second, weights=size, confidence=confidence, seed=seed)


def _resampled_means(
    difference: torch.Tensor, weight: torch.Tensor, resamples: int, seed: int
) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    pairs = len(difference)
    at_once = max(1, BATCH // pairs)
    means = []
    for begin in range(0, resamples, at_once):
        draws = min(at_once, resamples - begin)
        drawn = torch.randint(pairs, (draws, pairs), generator=generator)
        # a draw of zero total weight has no mean; with any sensible weights there is none
        means.append(difference[drawn].sum(1) / weight[drawn].sum(1).clamp_min(1e-300))
    return torch.cat(means)
