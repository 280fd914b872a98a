"""An open-loop load: requests arrive when they arrive, however far behind the engine is."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from labkit.batch.engine import Engine
from labkit.batch.request import Ticket
from labkit.batch.virtual import VirtualClock
from labkit.batch.workload import Arrival
from labkit.timing import percentile


@dataclass(frozen=True)
class Replay:
    """What a load measured: the requests in order of arrival, and seconds from the first to the last token."""

    tickets: tuple[Ticket, ...]
    seconds: float

    @property
    def tokens(self) -> int:
        """Output tokens."""
        return sum(len(sample.tokens) for ticket in self.tickets for sample in ticket.samples)

    @property
    def tokens_per_second(self) -> float:
        """Output tokens per second of the whole run."""
        return self.tokens / self.seconds

    def ttft(self, q: float) -> float:
        """A percentile of the time from arrival to first token [s]."""
        return percentile(self._after(0), q)

    def e2e(self, q: float) -> float:
        """A percentile of the time from arrival to last token [s]."""
        return percentile(self._after(-1), q)

    def _after(self, place: int) -> list[float]:
        """Seconds from arrival to one of the tokens, of the requests that got any."""
        return [ticket.first.stamps[place] - ticket.arrival for ticket in self.tickets if ticket.first.stamps]


def replay(engine: Engine, arrivals: Sequence[Arrival]) -> Replay:
    """Submit each request at its time and run until all have ended.

    On a VirtualClock, idle time is skipped; on a real one, slept through.
    """
    start = engine.clock()
    pause = _pause(engine)
    waiting = sorted(arrivals, key=lambda arrival: arrival.at)
    tickets: list[Ticket] = []
    while waiting or not engine.idle:
        while waiting and start + waiting[0].at <= engine.clock():
            arrival = waiting.pop(0)
            tickets.append(engine.submit(arrival.request, arrival=start + arrival.at))
        engine.scheduler.closing = not waiting
        steps = engine.metrics.count
        events = engine.step()
        if not events and engine.metrics.count == steps and not engine.in_flight:
            pause(min(start + waiting[0].at if waiting else math.inf, engine.wakes))
    engine.scheduler.closing = False
    return Replay(tuple(tickets), engine.clock() - start)


def _pause(engine: Engine) -> Callable[[float], None]:
    clock = engine.clock
    if isinstance(clock, VirtualClock):
        return clock.until

    def sleep(moment: float) -> None:
        if moment < math.inf:
            time.sleep(max(0.0, moment - clock()))

    return sleep
