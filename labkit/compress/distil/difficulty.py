"""What is hard, and what follows from it: which sequences come first, and how much a token's target is softened.

Difficulty is the teacher's own loss: what even the teacher finds surprising is hard.
"""

from __future__ import annotations

import torch
from torch import Tensor

from labkit.errors import LabkitError


def temperatures(losses: Tensor, temperature: float, spread: float) -> Tensor:
    """A temperature for each token, rising with its difficulty from T · (1 − spread) to T · (1 + spread).

    The easiest token of the batch gets the lowest, the hardest the highest, the others stand in between by rank, so
    the mean is T whatever the losses. Where the teacher knows what comes, its distribution is taken sharp; where it
    hesitates, what it thinks of the alternatives counts. The rule is this course's own; published ones derive the
    temperature from entropy (Kwon et al. 2020) or learn it against the student (Li et al. 2023, "Curriculum
    Temperature").

    Args:
        losses: the teacher's, of the true tokens [any shape].
        temperature: T, above 0.
        spread: 0 to below 1; 0 gives every token T.

    Raises:
        LabkitError: a spread outside that range.
    """
    if not 0 <= spread < 1:
        raise LabkitError(
            f"A spread of {spread} makes no temperatures.", "Give 0 ≤ spread < 1; 0 means the same for all."
        )
    flat = losses.flatten()
    ranks = torch.empty_like(flat)
    places = torch.linspace(-1, 1, len(flat), device=flat.device, dtype=flat.dtype)
    # equal losses keep their order, so the same batch gives the same temperatures
    ranks[flat.sort(stable=True).indices] = places if len(flat) > 1 else places.zero_()
    return temperature * (1 + spread * ranks).view_as(losses)


def share(step: int, steps: int, start: float, until: float = 0.5) -> float:
    """The easiest share of all sequences that a step may draw from: from `start` linearly to 1.

    From easy to hard: Bengio et al. 2009, "Curriculum Learning". A share that grows linearly, the competence: Platanios
    et al. 2019, "Competence-based Curriculum Learning for Neural Machine Translation".

    Args:
        step: from 0.
        start: above 0, at most 1; 1 means no curriculum.
        until: share of the training after which everything is drawn from.

    Raises:
        LabkitError: a share outside that range.
    """
    if not 0 < start <= 1 or not 0 < until <= 1:
        raise LabkitError(
            f"A curriculum cannot start with {start} of the text and end after {until} of the steps.",
            "Give shares above 0 and at most 1; a start of 1 means no curriculum.",
        )
    return min(1.0, start + (1 - start) * step / (until * steps))
