"""The engine on a virtual clock: policies tried in seconds, at a scale that no laptop has.

Engine, scheduler and block tables are the real ones. Only the model is missing: a step takes the time that a
cost model says, and every token is the same.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from labkit.batch.metrics import StepRecord, step_work
from labkit.batch.row import Step
from labkit.batch.runner import Drawn
from labkit.errors import LabkitError

TERMS = ("step", "token", "decode row", "context token", "pair")


class VirtualClock:
    """A clock that moves when told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """The time [s]."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds

    def until(self, moment: float) -> None:
        """Let time pass until a moment, if it lies ahead."""
        self.now = max(self.now, moment)


@dataclass(frozen=True)
class CostModel:
    """Seconds of a step: a fixed part, and a part for each token, decoding row, context token and query-key pair.

    The terms are those that the roofline names: weights are read once a step, tokens cost arithmetic, decoding
    rows read their context, long pieces of prompts pay for pairs of query and key.
    """

    step: float
    token: float = 0.0
    row: float = 0.0
    context: float = 0.0
    pair: float = 0.0

    def seconds(self, tokens: int, rows: int, context: int, pairs: int) -> float:
        """Predicted time of a step [s]."""
        return self.step + self.token * tokens + self.row * rows + self.context * context + self.pair * pairs

    @classmethod
    def fit(cls, records: Sequence[StepRecord]) -> CostModel:
        """Fit to measured steps: least squares of the relative error, no part negative.

        Every choice of parts is fitted freely, and of those without a negative part the closest is taken. That
        is exact (non-negative least squares, Lawson and Hanson 1974): the best solution is the free one on the
        parts that it uses. Dropping the most negative part over and over is not: on a GPU, where nearly all of a
        step is fixed, it may drop just that.

        Raises:
            LabkitError: fewer steps than parts.
        """
        if len(records) < len(TERMS):
            raise LabkitError(
                f"{len(records)} measured steps cannot tell {len(TERMS)} costs apart.",
                "Run more requests of different lengths.",
            )
        work = np.array([[1, r.tokens, r.decodes, r.context, r.pairs] for r in records], dtype=float)
        seconds = np.array([r.seconds for r in records])
        scaled, best, error = work / seconds[:, None], np.zeros(len(TERMS)), math.inf
        used = np.flatnonzero(work.any(axis=0)).tolist()
        for chosen in (c for n in range(1, len(used) + 1) for c in itertools.combinations(used, n)):
            found, *_ = np.linalg.lstsq(scaled[:, chosen], np.ones(len(records)), rcond=None)
            away = float(((scaled[:, chosen] @ found - 1) ** 2).sum())
            if (found >= 0).all() and away < error:
                best, error = np.zeros(len(TERMS)), away
                best[list(chosen)] = found
        return cls(*best.tolist())


@dataclass
class CostFlight:
    """A step that is over as soon as its time has passed."""

    step: Step
    token: int

    def wait(self) -> list[Drawn]:
        """The same token for everybody."""
        return [Drawn([self.token] * work.wanted) for work in self.step.works]


class CostRunner:
    """Pretends to run steps: advances a virtual clock by what the cost model says.

    Args:
        clock: the engine's clock.
        costs: seconds of a step.
        token: what every row draws; outputs end by their length, so requests should ignore the end of text.
    """

    overlaps = False

    def __init__(self, clock: VirtualClock, costs: CostModel, token: int = 0) -> None:
        self.clock = clock
        self.costs = costs
        self.token = token

    def launch(self, step: Step) -> CostFlight:
        """Let the step's time pass."""
        self.clock.advance(self.costs.seconds(*step_work(step)))
        return CostFlight(step, self.token)

    def close(self) -> None:
        """Nothing to release."""
