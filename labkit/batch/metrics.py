"""What an engine did, step by step: for pictures, for cost models and for a service's dashboards."""

from __future__ import annotations

from dataclasses import dataclass, field

from labkit.batch.row import Step
from labkit.batch.scheduler import Scheduler


@dataclass(frozen=True)
class StepRecord:
    """One step.

    Args:
        start, end: when it was scheduled, and when its tokens were known or, where steps overlap, the next one
            was scheduled [s]: so the steps of a busy engine lie end to end.
        rows: who ran, as (request, sample, tokens run).
        decodes: rows that ran a single token.
        tokens: tokens that ran.
        context: tokens that those of decoding rows looked at, summed.
        pairs: query-key pairs of the longer pieces, summed.
        drawn: new output tokens.
        running, waiting: rows at its end.
        used, cached, free: KV blocks at its end.
        preemptions: how many rows have given way since the engine began.
    """

    start: float
    end: float
    rows: tuple[tuple[int, int, int], ...]
    decodes: int
    tokens: int
    context: int
    pairs: int
    drawn: int
    running: int
    waiting: int
    used: int
    cached: int
    free: int
    preemptions: int

    @property
    def seconds(self) -> float:
        """How long it took [s]."""
        return self.end - self.start


@dataclass
class Metrics:
    """The steps of an engine, the latest of them, and totals over all.

    Args:
        keep: rows in the steps that are kept at least (a step of 256 rows takes about 20 kB).
    """

    keep: int = 1_000_000
    steps: list[StepRecord] = field(default_factory=list)
    count: int = 0
    drawn: int = 0
    tokens: int = 0
    kept: int = 0

    def add(self, record: StepRecord) -> None:
        """Note a step."""
        self.count += 1
        self.drawn += record.drawn
        self.tokens += record.tokens
        self.steps.append(record)
        self.kept += len(record.rows)
        if self.kept > 2 * self.keep:
            old = 0
            while self.kept - len(self.steps[old].rows) >= self.keep:
                self.kept -= len(self.steps[old].rows)
                old += 1
            del self.steps[:old]


def step_work(step: Step) -> tuple[int, int, int, int]:
    """What a step costs for: its tokens, rows that decode, the context they read, and pairs of the longer pieces."""
    ones = [work for work in step.works if work.tokens == 1]
    long = [work for work in step.works if work.tokens > 1]
    pairs = sum(work.tokens * (work.start + work.stop + 1) // 2 for work in long)
    return step.tokens, len(ones), sum(work.stop for work in ones), pairs


def record_step(step: Step, scheduler: Scheduler, start: float, end: float, drawn: int) -> StepRecord:
    """The record of a step that has just been committed."""
    pool = scheduler.tables.pool
    tokens, decodes, context, pairs = step_work(step)
    return StepRecord(
        start=start,
        end=end,
        rows=tuple((work.row.ticket.number, work.row.sample_index, work.tokens) for work in step.works),
        decodes=decodes,
        tokens=tokens,
        context=context,
        pairs=pairs,
        drawn=drawn,
        running=len(scheduler.running),
        waiting=scheduler.waiting,
        used=pool.used,
        cached=pool.cached,
        free=pool.free,
        preemptions=scheduler.preemptions,
    )
