"""The engine behind asyncio: one task steps it, callers await their tokens.

    async with Front(engine) as front:
        async for event in front.stream(request):
            ...

Steps run in a worker thread, so that the event loop stays free while the model computes. Whoever stops reading,
is cancelled or loses its connection ends its request, and the blocks are free before the next step.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from labkit.batch.engine import Engine
from labkit.batch.request import Event, Request, Ticket
from labkit.errors import LabkitError


class Front:
    """Serves requests from many tasks of one event loop. The engine must not be used by anyone else meanwhile.

    Args:
        engine: whose clock counts real seconds.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._queues: dict[int, asyncio.Queue[Event | BaseException]] = {}
        self._submitted: list[tuple[Request, asyncio.Future[Ticket]]] = []
        self._cancelled: list[Ticket] = []
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._step: asyncio.Future[list[Event]] | None = None

    async def __aenter__(self) -> Front:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *exception: object) -> None:
        if self._task is not None:
            self._task.cancel()
        cancelled = [await self._wait_for(self._task), await self._wait_for(self._step)]
        self._tell_waiting(LabkitError("The front was closed before the request began.", "Submit it again."))
        if self._step is not None and self._step.exception() is None:
            self._hand_out(self._step.result())
        self._step = None
        self._hand_out(self._engine.cancel_all())
        for error in cancelled:
            if error is not None:
                raise error

    async def _wait_for(self, future: asyncio.Future[Any] | None) -> asyncio.CancelledError | None:
        """Until it is done: a thread cannot be stopped, and the engine is nobody else's meanwhile.

        Returns:
            The cancellation of the one who waits, to be raised when everything is in order.
        """
        cancelled = None
        while future is not None and not future.done():
            try:
                await asyncio.wait([future])
            except asyncio.CancelledError as error:
                cancelled = error
        return cancelled

    async def stream(self, request: Request) -> AsyncIterator[Event]:
        """Submit a request and yield its events until every sample has ended.

        Raises:
            LabkitError: the request can never run, or the front is not open.
            Exception: whatever stopped the engine itself.
        """
        if self._task is None or self._task.done():
            raise LabkitError("The front is not open.", "Use it inside `async with Front(engine)`.")
        accepted: asyncio.Future[Ticket] = asyncio.get_running_loop().create_future()
        self._submitted.append((request, accepted))
        self._news.set()
        try:
            ticket = await accepted
        except asyncio.CancelledError:
            if not accepted.cancel() and accepted.exception() is None:  # it has just been taken in
                self._leave(accepted.result())
            raise
        queue = self._queues[ticket.number]
        ended = 0
        try:
            while ended < request.samples:
                event = await queue.get()
                if isinstance(event, BaseException):
                    raise event
                ended += event.reason is not None
                yield event
        finally:
            self._leave(ticket)

    async def complete(self, request: Request) -> Ticket:
        """Submit a request and wait for its end."""
        ticket = None
        async for event in self.stream(request):
            ticket = event.ticket
        if ticket is None:
            raise LabkitError("The request ended without an event.", "This is a fault of the engine.")
        return ticket

    async def _run(self) -> None:
        """Take in what is new, step, hand out; sleep while there is nothing to do."""
        try:
            while True:
                self._news.clear()
                self._take_in()
                if self._engine.idle:
                    await self._news.wait()
                    continue
                before = self._engine.metrics.count
                self._step = asyncio.ensure_future(asyncio.to_thread(self._engine.step))
                events = await asyncio.shield(self._step)
                self._step = None
                self._hand_out(events)
                if not events and self._engine.metrics.count == before and not self._engine.in_flight:
                    await self._pause()
        except Exception as error:  # nobody would be told otherwise
            self._step = None
            self._tell_all(error)

    async def _pause(self) -> None:
        """Until something new comes, or a waiting batch is due."""
        wait = self._engine.wakes - self._engine.clock()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), None if wait == math.inf else max(wait, 0.0))

    def _take_in(self) -> None:
        for ticket in self._cancelled:
            self._engine.cancel(ticket)
        self._cancelled.clear()
        while self._submitted:
            request, accepted = self._submitted.pop(0)
            if accepted.cancelled():
                continue
            try:
                ticket = self._engine.submit(request)
            except Exception as error:  # whatever it is, it is this caller's own
                accepted.set_exception(error)
                continue
            self._queues[ticket.number] = asyncio.Queue()
            accepted.set_result(ticket)

    def _hand_out(self, events: list[Event]) -> None:
        for event in events:
            if (queue := self._queues.get(event.ticket.number)) is not None:
                queue.put_nowait(event)

    def _leave(self, ticket: Ticket) -> None:
        """The caller is gone: nobody reads its events, and what is left of it ends."""
        self._queues.pop(ticket.number, None)
        if not ticket.done:
            self._cancelled.append(ticket)
            self._news.set()

    def _tell_all(self, error: BaseException) -> None:
        for queue in self._queues.values():
            queue.put_nowait(error)
        self._tell_waiting(error)

    def _tell_waiting(self, error: BaseException) -> None:
        for _, accepted in self._submitted:
            if not accepted.done():
                accepted.set_exception(error)
        self._submitted.clear()
