"""Couriers as asyncio tasks: a bounded shelf, workers, timeouts and a clean stop."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass

TICK = 0.001  # one "minute" of the story, in seconds


@dataclass(slots=True)
class Parcel:
    address: str
    minutes: int
    attempts: int = 0


class NobodyHome(Exception):
    pass


class Shelf:
    """A queue that can be closed: getters then drain it and stop."""

    def __init__(self, size: int) -> None:
        self._queue: asyncio.Queue[Parcel | None] = asyncio.Queue(size)

    async def put(self, parcel: Parcel) -> None:
        await self._queue.put(parcel)

    async def close(self) -> None:
        await self._queue.put(None)

    def __aiter__(self) -> AsyncIterator[Parcel]:
        return self

    async def __anext__(self) -> Parcel:
        parcel = await self._queue.get()
        if parcel is None:
            await self._queue.put(None)  # leave the notice for the next courier
            raise StopAsyncIteration
        return parcel


async def ring_bell(parcel: Parcel) -> None:
    await asyncio.sleep(parcel.minutes * TICK)
    if parcel.address.startswith("closed") and parcel.attempts < 2:
        raise NobodyHome(parcel.address)


async def deliver(parcel: Parcel, patience: int) -> str:
    """Try twice; give up on anything that takes longer than `patience` minutes."""
    while True:
        parcel.attempts += 1
        try:
            async with asyncio.timeout(patience * TICK):
                await ring_bell(parcel)
        except NobodyHome:
            if parcel.attempts >= 2:
                return "returned"
        except TimeoutError:
            return "late"
        else:
            return "delivered" if parcel.attempts == 1 else "delivered on second try"


async def courier(name: str, shelf: Shelf, log: list[tuple[str, str]], patience: int) -> int:
    trips = 0
    async for parcel in shelf:
        log.append((parcel.address, await deliver(parcel, patience)))
        trips += 1
    return trips


@contextlib.asynccontextmanager
async def heartbeat(beats: list[int]) -> AsyncIterator[None]:
    """Count in the background for as long as the block runs."""

    async def beat() -> None:
        while True:
            beats[0] += 1
            await asyncio.sleep(TICK)

    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def evening(parcels: Iterable[Parcel], couriers: int = 3, patience: int = 200):
    shelf, log, beats = Shelf(size=2), [], [0]
    async with heartbeat(beats), asyncio.TaskGroup() as group:
        crew = [group.create_task(courier(f"c{i}", shelf, log, patience)) for i in range(couriers)]
        for parcel in parcels:
            await shelf.put(parcel)
        await shelf.close()
    return log, [task.result() for task in crew], beats[0]


def demo() -> dict[str, object]:
    parcels = [Parcel(f"{n} Mill Lane", minutes=n) for n in range(1, 6)]
    parcels += [Parcel("closed shop", 2), Parcel("far island", 5000)]
    log, trips, beats = asyncio.run(evening(parcels))
    return {
        "outcomes": Counter(outcome for _, outcome in log),
        "trips": sum(trips),
        "alive": beats > 0,
    }
