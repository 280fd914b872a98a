"""The requests that have not ended: their rows, how they end, and what callers have not been told yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from labkit.batch.output import Output
from labkit.batch.request import Event, Reason, Ticket
from labkit.batch.row import Row, State
from labkit.batch.scheduler import Scheduler


class Live:
    """Requests of one engine from submission to end.

    Args:
        scheduler: where their rows wait and run; its `outgrown` is taken over.
        output: fills their samples.
    """

    def __init__(self, scheduler: Scheduler, output: Output) -> None:
        self.events: list[Event] = []
        self._scheduler = scheduler
        self._output = output
        self._rows: dict[int, list[Row]] = {}
        self._streams: dict[int, deque[Event]] = {}
        scheduler.set_outgrown(self._outgrew)

    def __bool__(self) -> bool:
        return bool(self._rows)

    def add(self, ticket: Ticket, rows: Sequence[Row]) -> None:
        """Queue a request's rows."""
        self._rows[ticket.number] = list(rows)
        for row in rows:
            self._scheduler.add(row)

    def tickets(self) -> list[Ticket]:
        """Those of all requests that have not ended."""
        return [rows[0].ticket for rows in self._rows.values()]

    def of(self, ticket: Ticket) -> list[Row]:
        """The rows of a ticket, if it is one of this engine's and has not ended."""
        return [row for row in self._rows.get(ticket.number, ()) if row.ticket is ticket]

    def take_events(self) -> list[Event]:
        """What nobody has been handed yet; streams get their own."""
        events, self.events = self.events, []
        for event in events:
            if (stream := self._streams.get(event.ticket.number)) is not None:
                stream.append(event)
        return events

    def listen(self, ticket: Ticket) -> deque[Event]:
        """Where a ticket's events are collected for a stream until `forget`, whoever takes them."""
        return self._streams.setdefault(ticket.number, deque())

    def forget(self, ticket: Ticket) -> None:
        """Nobody reads that stream any more."""
        self._streams.pop(ticket.number, None)

    def end(self, row: Row, reason: Reason, error: str = "") -> None:
        """End a row, unless it has ended; its blocks are free at once."""
        if row.state is State.ENDED:
            return
        self._scheduler.remove(row)
        self._finished(row, reason, error)

    def deadlines(self) -> Iterator[float]:
        """When each request that has one is given up [s]."""
        for ticket in self.tickets():
            if ticket.request.deadline is not None:
                yield ticket.arrival + ticket.request.deadline

    def expire(self, now: float) -> None:
        """End the requests whose time is over."""
        for ticket in self.tickets():
            if ticket.request.deadline is not None and now >= ticket.arrival + ticket.request.deadline:
                for row in self.of(ticket):
                    self.end(row, Reason.DEADLINE)

    def start_over(self) -> None:
        """Begin all rows again with the tokens that their callers have: of the step under way nothing is known."""
        rows = [row for rows in self._rows.values() for row in rows if row.state is not State.ENDED]
        ends = [(row, self._output.restore(row)) for row in rows]
        self._scheduler.start_over(rows)
        for row, reason in ends:
            if reason is not None:
                self.end(row, reason)

    def _finished(self, row: Row, reason: Reason, error: str = "") -> None:
        self.events.append(self._output.finish(row, reason, error))
        if row.ticket.done:
            self._rows.pop(row.ticket.number, None)

    def _outgrew(self, row: Row) -> None:
        self._finished(row, Reason.MEMORY, "It needs more KV blocks than there are.")
