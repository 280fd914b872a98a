"""The engine: schedule, run, sample, commit, again and again.

    engine = Engine.of(load("labcoder"))
    ticket = engine.submit(Request(prompt="def mean(values):", max_tokens=64))
    while not ticket.done:
        for event in engine.step():
            print(event.text, end="")

On a GPU a step is scheduled and launched while the one before it still runs: its input is the tokens that
one draws, which never leave the device in between. That a row had ended is noticed a step late; what the late
step computed for it is dropped, and nobody sees it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from labkit.batch.intake import Intake
from labkit.batch.metrics import Metrics, record_step
from labkit.batch.output import Output
from labkit.batch.proposer import accepted
from labkit.batch.request import Event, Reason, Request, Ticket
from labkit.batch.row import Row, State, Step, Work
from labkit.batch.runner import Drawn, Flight, Runner
from labkit.batch.scheduler import NeedsQuiet, Scheduler
from labkit.errors import LabkitError
from labkit.timing import Clock


class Engine:
    """Runs requests on one model.

    Args:
        runner: runs steps.
        scheduler: chooses them; its `outgrown` is taken over.
        clock: the engine's time [s].
        tokenizer: for prompts given as text, for text in results, and for stop strings; None for ids only.
        eos: tokens that end a text.
        positions: tokens that a row may reach; None for no limit but memory.
        seed: from which requests without a seed of their own get one.
    """

    def __init__(
        self,
        runner: Runner,
        scheduler: Scheduler,
        *,
        clock: Clock = time.perf_counter,
        tokenizer: Any = None,
        eos: Sequence[int] = (),
        positions: int | None = None,
        seed: int = 0,
    ) -> None:
        self.runner = runner
        self.scheduler = scheduler
        self.clock = clock
        self.metrics = Metrics()
        self._intake = Intake(scheduler, tokenizer, positions, seed)
        self._output = Output(eos)
        self._rows: dict[int, list[Row]] = {}
        self._flight: Flight | None = None
        self._launched_at = 0.0
        self._events: list[Event] = []
        self._closed = False
        scheduler.set_outgrown(self._outgrew)

    def submit(self, request: Request, *, arrival: float | None = None) -> Ticket:
        """Queue a request.

        Args:
            arrival: when it was due [s], if that is not now; latencies count from there.

        Raises:
            LabkitError: a prompt that can never fit, text or stop strings without a tokenizer, or a closed engine.
        """
        if self._closed:
            raise LabkitError("The engine is closed.", "Make a new one.")
        ticket, rows = self._intake.accept(request, self.clock() if arrival is None else arrival)
        self._rows[ticket.number] = rows
        for row in rows:
            self.scheduler.add(row)
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """End what is left of a request; its blocks are free at once. Nothing happens if it has ended."""
        for row in self._rows.get(ticket.number, ()):
            if row.ticket is ticket:  # another engine's tickets have numbers of their own
                self._end(row, Reason.CANCELLED)

    def cancel_all(self) -> list[Event]:
        """End every request, and return the events that nobody has been handed yet."""
        for rows in list(self._rows.values()):
            self.cancel(rows[0].ticket)
        self._settle()
        events, self._events = self._events, []
        return events

    @property
    def idle(self) -> bool:
        """Nothing waits, runs or is in flight, and every event was handed out."""
        return not self._rows and self._flight is None and not self._events

    @property
    def in_flight(self) -> bool:
        """A step has been launched whose tokens are not known yet."""
        return self._flight is not None

    @property
    def wakes(self) -> float:
        """When a waiting batch will start or a deadline pass though nothing else happens [s]; inf if never."""
        queue = self.scheduler.queue()
        return min([self.scheduler.policy.wakes(queue), *self._deadlines()])

    def step(self) -> list[Event]:
        """Run one step, and return what became known."""
        now = self.clock()
        self._expire(now)
        step = self._schedule(now)
        launched = self._launch(step)
        if self._flight is not None:
            self._commit(self._flight, now)
        self._flight, self._launched_at = launched, now
        if not self.runner.overlaps:
            self._settle()
        events, self._events = self._events, []
        return events

    def run(self, requests: Sequence[Request]) -> list[Ticket]:
        """Submit all requests at once and run until every one has ended; batches need not fill up."""
        tickets = [self.submit(request) for request in requests]
        self.drain()
        return tickets

    def drain(self) -> list[Event]:
        """Run until nothing is left; for policies that wait for company, no more is to come."""
        before, self.scheduler.closing = self.scheduler.closing, True
        events = []
        try:
            while not self.idle:
                events += self.step()
        finally:
            self.scheduler.closing = before
        return events

    def stream(self, request: Request) -> Iterator[Event]:
        """Submit one request and yield its events; leaving the loop early cancels it."""
        ticket = self.submit(request)
        try:
            while not ticket.done:
                yield from (event for event in self.step() if event.ticket is ticket)
        finally:
            self.cancel(ticket)

    def close(self) -> None:
        """Cancel everything and give the model back as it was."""
        self.cancel_all()
        self.runner.close()
        self._closed = True

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _schedule(self, now: float) -> Step:
        try:
            return self.scheduler.schedule(now, quiet=self._flight is None)
        except NeedsQuiet:
            self._settle()
            return self.scheduler.schedule(now)

    def _launch(self, step: Step) -> Flight | None:
        if not step:
            return None
        try:
            return self.runner.launch(step)
        except Exception as error:  # whatever the model raised: those rows end, the engine goes on
            self._fail(step, error)
            return None

    def _settle(self) -> None:
        """Wait for the step in flight, if there is one."""
        flight, self._flight = self._flight, None
        if flight is not None:
            self._commit(flight, self._launched_at)

    def _commit(self, flight: Flight, start: float) -> None:
        try:
            drawn = flight.wait()
        except Exception as error:  # a GPU reports a failure only when its results are fetched
            self._fail(flight.step, error)
            return
        now = self.clock()
        new = sum(self._accept(work, got, now) for work, got in zip(flight.step.works, drawn, strict=True))
        self.metrics.add(record_step(flight.step, self.scheduler, start, now, new))

    def _accept(self, work: Work, drawn: Drawn, now: float) -> int:
        """Take over one row's part of a step; returns how many tokens that gave."""
        row = work.row
        if not work.current:
            return 0
        if not work.wanted:
            self._store(row, work.stop)
            return 0
        row.pending -= 1
        if drawn.bad:
            self._end(row, Reason.FAILED, "The model's logits are not numbers.")
            return 0
        kept = accepted(drawn.tokens, work.guesses)
        row.tokens += kept
        if work.guesses:
            row.launched = row.total - 1
        self._store(row, work.stop - len(work.guesses) + len(kept) - 1)
        event, reason = self._output.take(row, kept, drawn, now)
        self._events.append(event)
        if reason is not None:
            self._end(row, reason)
        return len(kept)

    def _store(self, row: Row, length: int) -> None:
        row.stored = length
        self.scheduler.tables.commit(row.number, length, row.tokens)

    def _end(self, row: Row, reason: Reason, error: str = "") -> None:
        if row.state is State.ENDED:
            return
        self.scheduler.remove(row)
        self._finished(row, reason, error)

    def _finished(self, row: Row, reason: Reason, error: str = "") -> None:
        self._events.append(self._output.finish(row, reason, error))
        if row.ticket.done:
            self._rows.pop(row.ticket.number, None)

    def _outgrew(self, row: Row) -> None:
        self._finished(row, Reason.MEMORY, "It needs more KV blocks than there are.")

    def _fail(self, step: Step, error: Exception) -> None:
        for work in step.works:
            if work.current:
                self._end(work.row, Reason.FAILED, f"{type(error).__name__}: {error}")

    def _deadlines(self) -> Iterator[float]:
        for rows in self._rows.values():
            ticket = rows[0].ticket
            if ticket.request.deadline is not None:
                yield ticket.arrival + ticket.request.deadline

    def _expire(self, now: float) -> None:
        late = [
            rows
            for rows in self._rows.values()
            if rows[0].ticket.request.deadline is not None
            and now >= rows[0].ticket.arrival + rows[0].ticket.request.deadline
        ]
        for row in [row for rows in late for row in rows]:
            self._end(row, Reason.DEADLINE)
