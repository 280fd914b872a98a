"""The engine: schedule, run, sample, commit, again and again.

    engine = engine_for(load("labcoder"))
    ticket = engine.submit(Request(prompt="def mean(values):", max_tokens=64))
    while not ticket.done:
        for event in engine.step():
            print(event.text, end="")

On a GPU a step is scheduled and launched while the one before it still runs: its input is the tokens that
one draws, which never leave the device in between. That a row had ended is noticed a step late; what the late
step computed for it is dropped, and nobody sees it. With a proposer every step waits for the one before: who
guesses what follows a token must know it.

An interrupt (Ctrl-C) loses the step under way and nothing else: all rows start over from the tokens they have.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

from labkit.batch.intake import Intake
from labkit.batch.live import Live
from labkit.batch.metrics import Metrics, record_step
from labkit.batch.output import Output
from labkit.batch.proposer import accepted
from labkit.batch.request import Event, Reason, Request, Ticket
from labkit.batch.row import Row, Step, Work
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
        vocab: tokens that the model knows; None to believe every id.
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
        vocab: int | None = None,
        seed: int = 0,
    ) -> None:
        self.runner = runner
        self.scheduler = scheduler
        self.clock = clock
        self.metrics = Metrics()
        self._overlaps = runner.overlaps and scheduler.proposer is None
        self._intake = Intake(scheduler, tokenizer, positions, vocab, seed)
        self._output = Output(eos)
        self._live = Live(scheduler, self._output)
        self._flight: Flight | None = None
        self._launched_at = 0.0
        # an engine that is dropped without close() gives the model back too
        self._release = weakref.finalize(self, runner.close)
        self._release.atexit = False

    def submit(self, request: Request, *, arrival: float | None = None) -> Ticket:
        """Queue a request.

        Args:
            arrival: when it was due [s], if that is not now; latencies count from there.

        Raises:
            LabkitError: a prompt that can never fit, text or stop strings without a tokenizer, or a closed engine.
        """
        return self._queue([self._accepted(request, arrival)])[0]

    def _accepted(self, request: Request, arrival: float | None = None) -> tuple[Ticket, list[Row]]:
        if not self._release.alive:
            raise LabkitError("The engine is closed.", "Make a new one.")
        return self._intake.accept(request, self.clock() if arrival is None else arrival)

    def _queue(self, accepted: Sequence[tuple[Ticket, list[Row]]]) -> list[Ticket]:
        for ticket, rows in accepted:
            self._live.add(ticket, rows)
        return [ticket for ticket, _ in accepted]

    def cancel(self, ticket: Ticket) -> None:
        """End what is left of a request; its blocks are free at once. Nothing happens if it has ended."""
        for row in self._live.of(ticket):
            self._live.end(row, Reason.CANCELLED)

    def cancel_all(self) -> list[Event]:
        """End every request, and return the events that nobody has been handed yet."""
        for ticket in self._live.tickets():
            self.cancel(ticket)
        self._settle()
        return self._live.take_events()

    @property
    def idle(self) -> bool:
        """Nothing waits, runs or is in flight, and every event was handed out."""
        return not self._live and self._flight is None and not self._live.events

    @property
    def in_flight(self) -> bool:
        """A step has been launched whose tokens are not known yet."""
        return self._flight is not None

    @property
    def wakes(self) -> float:
        """When a waiting batch will start or a deadline pass though nothing else happens [s]; inf if never."""
        queue = self.scheduler.queue()
        return min([self.scheduler.policy.wakes(queue), *self._live.deadlines()])

    def step(self) -> list[Event]:
        """Run one step, and return what became known."""
        now = self.clock()
        try:
            self._live.expire(now)
            step = self._schedule(now)
            launched = self._launch(step)
            if self._flight is not None:
                self._commit(self._flight, until=now if launched else None)
            self._flight, self._launched_at = launched, now
            if not self._overlaps:
                self._settle()
        except BaseException:
            self._flight = None
            self._live.start_over()
            raise
        return self._live.take_events()

    def run(self, requests: Sequence[Request]) -> list[Ticket]:
        """Submit all requests at once and run until every one has ended; batches need not fill up.

        Raises:
            LabkitError: one of them can never run; none is queued then.
        """
        if isinstance(requests, Request | str):
            raise LabkitError("run() takes several requests.", "Give a list: run([Request(prompt=…)]).")
        tickets = self._queue([self._accepted(request) for request in requests])
        self.drain()
        return tickets

    def drain(self) -> list[Event]:
        """Run until nothing is left; for policies that wait for company, no more is to come."""
        events = []
        while not self.idle:
            events += self._step_alone()
        return events

    def stream(self, request: Request) -> Iterator[Event]:
        """Submit one request and yield its events; leaving the loop early cancels it.

        Batches do not wait for company meanwhile. Several streams may be read in turns.
        """
        ticket = self.submit(request)
        events = self._live.listen(ticket)
        try:
            while events or not ticket.done:
                while events:
                    yield events.popleft()
                if not ticket.done:
                    self._step_alone()
        finally:
            self._live.forget(ticket)
            self.cancel(ticket)

    def _step_alone(self) -> list[Event]:
        """A step in which policies that wait for company need not."""
        before, self.scheduler.closing = self.scheduler.closing, True
        try:
            return self.step()
        finally:
            self.scheduler.closing = before

    def close(self) -> None:
        """Cancel everything and give the model back as it was. Closing again does nothing."""
        if not self._release.alive:
            return
        try:
            self.cancel_all()
        finally:
            self._release()

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
            self._commit(flight)

    def _commit(self, flight: Flight, until: float | None = None) -> None:
        """Take over what a step drew. In the metrics it lasts until the next one took its place, `until`."""
        try:
            drawn = flight.wait()
        except Exception as error:  # a GPU reports a failure only when its results are fetched
            self._fail(flight.step, error)
            return
        now, new = self.clock(), 0
        for work, got in zip(flight.step.works, drawn, strict=True):
            try:
                new += self._accept(work, got, now)
            except Exception as error:  # one row's own trouble
                self._live.end(work.row, Reason.FAILED, f"{type(error).__name__}: {error}")
        end = now if until is None else until
        self.metrics.add(record_step(flight.step, self.scheduler, self._launched_at, end, new))

    def _accept(self, work: Work, drawn: Drawn, now: float) -> int:
        """Take over one row's part of a step; returns how many tokens that gave."""
        row = work.row
        if not work.current:
            return 0
        if not work.wanted:  # no logits tell whether it went well: published with the first draw
            self._store(row, work.stop, publish=False)
            return 0
        row.pending -= 1
        if drawn.bad:
            self._live.end(row, Reason.FAILED, "The model's logits are not numbers.")
            return 0
        kept = accepted(drawn.tokens, work.guesses)
        row.tokens += kept
        if work.guesses:
            row.launched = row.total - 1
        self._store(row, work.stop - len(work.guesses) + len(kept) - 1)
        event, reason = self._output.take(row, kept, drawn, now)
        self._live.events.append(event)
        if reason is not None:
            self._live.end(row, reason)
        return len(kept)

    def _store(self, row: Row, length: int, *, publish: bool = True) -> None:
        row.stored = length
        self.scheduler.tables.commit(row.number, length, row.tokens, publish=publish)

    def _fail(self, step: Step, error: Exception) -> None:
        for work in step.works:
            if work.current:
                self._live.end(work.row, Reason.FAILED, f"{type(error).__name__}: {error}")
