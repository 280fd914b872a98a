"""Which rows run in the next step, and which tokens of each.

Every step serves the rows that decode first, then prompts in pieces, as many tokens as the step may hold
(chunked prefill: Sarathi-Serve, Agrawal et al. 2024). Rows are ordered by arrival + priority · head_start: a VIP
counts as having arrived earlier, so it overtakes, and whoever waits long enough is overtaken no more. A row
joins only when all its known tokens fit into free KV blocks. When a running row needs a block and none is
left, the last row in order gives its blocks back and starts over later; the first is never asked, so
somebody always finishes.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable

from labkit.batch import checks
from labkit.batch.policy import Policy, Queue
from labkit.batch.proposer import Proposer
from labkit.batch.row import Row, State, Step, Work
from labkit.cache.tables import BlockTables
from labkit.errors import LabkitError

SPARE = 64
"""Ended rows that may stay in the queue's heap."""


class NeedsQuiet(Exception):
    """A row must be preempted, and a step is in flight: its tokens have to be known first."""


class Scheduler:
    """Chooses each step.

    Args:
        tables: the rows' KV blocks.
        policy: when waiting rows may join.
        rows: at most so many at once (the sampler's slots).
        step_tokens: tokens in a step at most; raised so far that every row can decode with its guesses.
        head_start: seconds of waiting that one level of priority is worth.
        proposer: guesses tokens for rows that decode; nobody by default.
        guesses: at most so many for a row and step.

    Raises:
        LabkitError: a size below one.
    """

    def __init__(
        self,
        tables: BlockTables,
        policy: Policy,
        *,
        rows: int = 256,
        step_tokens: int = 2048,
        head_start: float = 10.0,
        proposer: Proposer | None = None,
        guesses: int = 4,
    ) -> None:
        if not hasattr(policy, "admit") or isinstance(policy, type):
            raise LabkitError(f"{policy!r} is no policy.", "Give one, like Continuous() or static(8).")
        checks.count("Scheduler: rows", rows, 1)
        checks.count("Scheduler: step_tokens", step_tokens, 1)
        checks.count("Scheduler: guesses", guesses, 0)
        checks.number("Scheduler: head_start", head_start, "of seconds, at least 0", lambda x: x >= 0)
        self.tables = tables
        self.policy = policy
        self.rows = rows
        self.step_tokens = max(step_tokens, rows * (1 + (guesses if proposer is not None else 0)))
        self.head_start = head_start
        self.proposer = proposer
        self.guesses = guesses
        self.closing = False
        self.preemptions = 0
        self._outgrown: Callable[[Row], None] = lambda row: None
        self._waiting: set[Row] = set()
        self._heap: list[Row] = []  # those of _waiting, and some that ended meanwhile
        self._running: list[Row] = []  # in order
        self._slots = list(range(rows - 1, -1, -1))

    @property
    def waiting(self) -> int:
        """Rows that wait."""
        return len(self._waiting)

    @property
    def running(self) -> tuple[Row, ...]:
        """Rows that run, first in order first."""
        return tuple(self._running)

    def set_outgrown(self, call: Callable[[Row], None]) -> None:
        """What to tell about a row that needs more blocks than there are; it has been removed then."""
        self._outgrown = call

    def place(self, arrival: float, priority: float, number: int) -> tuple[float, int]:
        """The order of a row: smaller goes first."""
        return arrival + priority * self.head_start, number

    def add(self, row: Row) -> None:
        """Queue a row."""
        self._waiting.add(row)
        heapq.heappush(self._heap, row)

    def remove(self, row: Row) -> None:
        """End a row wherever it is; its blocks and its slot are free at once."""
        if row.state is State.RUNNING:
            self._stop(row)
        self._waiting.discard(row)
        row.state = State.ENDED
        if len(self._heap) > 2 * len(self._waiting) + SPARE:
            self._heap = sorted(self._waiting)

    def start_over(self, rows: Iterable[Row]) -> None:
        """Put every row that has not ended back into the queue: nothing is known of what was under way."""
        self._running.clear()
        self._slots = list(range(self.rows - 1, -1, -1))
        self._waiting = {row for row in rows if row.state is not State.ENDED}
        for row in self._waiting:
            if row.number in self.tables.rows:
                self.tables.release(row.number)
            self.preemptions += row.state is State.RUNNING
            row.ticket.preemptions += row.state is State.RUNNING
            row.slot, row.launched, row.stored, row.pending = -1, 0, 0, 0
            row.state = State.WAITING
        self._heap = sorted(self._waiting)

    def queue(self) -> Queue:
        """What the policy sees."""
        arrivals = (row.ticket.arrival for row in self._waiting)
        oldest = math.inf if self._running else min(arrivals, default=math.inf)
        return Queue(len(self._waiting), oldest, len(self._running), self.closing)

    def schedule(self, now: float, *, quiet: bool = True) -> Step:
        """The next step; empty when nobody can run.

        Args:
            now: the engine's time [s].
            quiet: no step is in flight.

        Raises:
            NeedsQuiet: a row has to give way; nothing of value changed, schedule again once it is quiet.
        """
        works: list[Work] = []
        for row in self.running:
            if row.state is State.RUNNING and row.remaining == 1:
                guesses = self._propose(row)
                if (
                    self.tables.missing(row.number, row.launched + 1 + len(guesses))
                    > self.tables.pool.available
                ):
                    guesses = ()  # nobody gives way to a guess
                if self._make_room(row, row.launched + 1 + len(guesses), quiet):
                    works.append(self._work(row, 1, guesses))
        self._admit(now)
        works += self._prompts(works)
        works.sort(key=lambda work: work.tokens > 1)
        for work in works:
            work.row.launched = work.stop
            work.row.pending += work.wanted > 0
        return Step(works)

    def _prompts(self, works: list[Work]) -> list[Work]:
        """Pieces of prompts, first in order first, in the room that the decoding rows leave."""
        served = {work.row.number for work in works}
        left = self.step_tokens - sum(work.tokens for work in works)
        pieces = []
        for row in self._running:
            if left > 0 and row.remaining and row.number not in served:
                pieces.append(self._work(row, min(row.remaining, left)))
                left -= pieces[-1].tokens
        return pieces

    def _propose(self, row: Row) -> tuple[int, ...]:
        most = min(self.guesses, row.request.max_tokens - row.drawn - 1)
        if self.proposer is None or most < 1 or row.pending or row.request.sampling.needs_history:
            return ()
        return tuple(self.proposer.propose(row.tokens, most))[:most]

    def _work(self, row: Row, count: int, guesses: tuple[int, ...] = ()) -> Work:
        last = row.launched + count == row.total
        wanted = 1 + len(guesses) if last else 0
        return Work(row, row.launched, count, wanted, row.drawn, row.admissions, guesses)

    def _make_room(self, row: Row, length: int, quiet: bool) -> bool:
        """Reserve blocks for `length` tokens of a running row; False if it had to give way itself."""
        while self.tables.missing(row.number, length) > self.tables.pool.available:
            if not quiet:
                raise NeedsQuiet
            victim = self._running[-1]
            if victim is row and len(self._running) == 1:
                self.remove(row)
                self._outgrown(row)
                return False
            self._preempt(victim)
            if victim is row:
                return False
        self.tables.reserve(row.number, length)
        return True

    def _preempt(self, row: Row) -> None:
        self._stop(row)
        self.preemptions += 1
        row.ticket.preemptions += 1
        row.state = State.WAITING
        self.add(row)

    def _stop(self, row: Row) -> None:
        self._running.remove(row)
        self._slots.append(row.slot)
        self.tables.release(row.number)
        row.slot, row.launched, row.stored, row.pending = -1, 0, 0, 0

    def _admit(self, now: float) -> None:
        room = self.policy.admit(self.queue(), now) if self._waiting else 0
        set_aside = []
        while self._heap and self._slots:
            row = heapq.heappop(self._heap)
            if row.state is not State.WAITING:
                continue  # it ended while it waited
            leader = row.leader if row.leader is not None and row.leader.state is State.RUNNING else None
            if leader is not None and leader.stored < row.prompt:
                set_aside.append(row)  # its prompt is being computed already
            elif (room > 0 or (leader is not None and self._free_slot())) and self._begin(row, leader):
                room -= 1
            else:
                set_aside.append(row)
                break
        for row in set_aside:
            heapq.heappush(self._heap, row)

    def _free_slot(self) -> bool:
        """Whether one more row fits into the policy's limit: a further sample waits for no batch."""
        return self.policy.most is None or len(self._running) < self.policy.most

    def _begin(self, row: Row, leader: Row | None) -> bool:
        """Give a waiting row its slot and blocks, sharing what is there already; False if memory is short."""
        tables, tokens = self.tables, row.tokens
        spare = min(len(self._running), tables.pool.total // 16)  # running rows are about to grow
        if leader is not None and row.drawn == 0:
            if tables.pool.available < 1 + spare:
                return False
            tables.fork(leader.number, row.number, row.prompt - 1)
            row.launched = row.prompt - 1  # its last token runs again: each sample draws its own first token
        else:
            if not tables.admissible(tokens, row.request.salt, spare):
                return False
            row.launched = tables.open(row.number, tokens, row.request.salt)
            if not row.admissions and not row.sample_index:
                row.ticket.cached_tokens = row.launched
        tables.reserve(row.number, len(tokens))
        self._waiting.discard(row)
        row.stored, row.slot, row.state = row.launched, self._slots.pop(), State.RUNNING
        row.admissions += 1
        self._running.append(row)
        self._running.sort()
        return True
