"""The engine behind asyncio: many callers, callers that leave, and an engine that breaks."""

from __future__ import annotations

import asyncio
import time

import pytest
from oracle import EOS, OracleRunner, alone

from labkit.batch.engine import Engine
from labkit.batch.front import Front
from labkit.batch.policy import Continuous, dynamic
from labkit.batch.request import Reason, Request
from labkit.batch.sampling import Sampling
from labkit.batch.scheduler import Scheduler
from labkit.cache.tables import BlockTables
from labkit.errors import LabkitError


def build(policy=None, blocks=30, overlaps=False):
    tables = BlockTables(blocks, 4)
    runner = OracleRunner(tables, overlaps=overlaps)
    return Engine(runner, Scheduler(tables, policy or Continuous(), rows=6), eos=[EOS])


def ask(number, new=12, **more):
    return Request(prompt=[number] * 5, max_tokens=new, sampling=Sampling(seed=number), **more)


def gone(engine):
    pool = engine.scheduler.tables.pool
    return engine.idle and pool.used == 0 and not engine.scheduler.tables.rows


@pytest.mark.parametrize("overlaps", [False, True])
def test_many_callers_get_what_they_get_alone(overlaps):
    engine = build(overlaps=overlaps)

    async def main():
        async with Front(engine) as front:
            return await asyncio.gather(*(front.complete(ask(n)) for n in range(20)))

    for number, ticket in enumerate(asyncio.run(main())):
        assert ticket.first.tokens == alone(ask(number), ticket.prompt, number)
    assert gone(engine)


def test_a_caller_that_leaves_ends_its_request_and_nobody_elses():
    engine = build()

    async def leaves(front):
        async for event in front.stream(ask(1, 500, ignore_eos=True)):
            if len(event.ticket.first.tokens) == 3:
                return event.ticket

    async def main():
        async with Front(engine) as front:
            stays = asyncio.create_task(front.complete(ask(2)))
            cut = asyncio.create_task(front.complete(ask(3, 80, ignore_eos=True)))
            left = await leaves(front)
            cut.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cut
            ticket = await stays
            while not engine.idle:
                await asyncio.sleep(0.001)
            return left, ticket

    left, ticket = asyncio.run(main())
    assert left.first.reason is Reason.CANCELLED and len(left.first.tokens) < 500
    assert ticket.first.tokens == alone(ask(2), ticket.prompt, 2)
    assert gone(engine)


def test_a_caller_that_leaves_before_it_is_taken_in_leaves_nothing():
    engine = build()

    async def main():
        async with Front(engine) as front:
            for wait in range(20):
                task = asyncio.create_task(front.complete(ask(1, 300, ignore_eos=True)))
                for _ in range(wait % 4):
                    await asyncio.sleep(0)
                task.cancel()
            await front.complete(ask(2))
            while not engine.idle:
                await asyncio.sleep(0.001)

    asyncio.run(main())
    assert gone(engine)


def test_a_refused_request_is_told_and_the_rest_goes_on():
    engine = build(blocks=3)

    async def main():
        async with Front(engine) as front:
            with pytest.raises(LabkitError, match="whole KV pool"):
                await front.complete(Request(prompt=[1] * 50))
            return await front.complete(ask(1, 2))

    assert asyncio.run(main()).done and gone(engine)


def test_closing_wakes_whoever_waits():
    engine = build()

    async def main():
        async with Front(engine) as front:
            task = asyncio.create_task(front.complete(ask(1, 10_000, ignore_eos=True)))
            await asyncio.sleep(0.02)
        return await asyncio.wait_for(task, 5)

    assert asyncio.run(main()).first.reason in (Reason.CANCELLED, Reason.MEMORY)
    assert gone(engine)


def test_a_batch_that_waits_for_company_starts_by_the_clock():
    engine = build(dynamic(4, 0.05))

    async def main():
        async with Front(engine) as front:
            start = time.perf_counter()
            ticket = await asyncio.wait_for(front.complete(ask(1, 2)), 10)
            return ticket, time.perf_counter() - start

    ticket, seconds = asyncio.run(main())
    assert ticket.done and seconds >= 0.05


def test_an_engine_that_breaks_tells_everybody():
    engine = build()

    def broken():
        raise RuntimeError("broken")

    async def main():
        front = Front(engine)
        async with front:
            engine.step = broken
            with pytest.raises(RuntimeError, match="broken"):
                await asyncio.wait_for(front.complete(ask(1)), 10)
            with pytest.raises(LabkitError, match="not open"):
                await front.complete(ask(2))

    asyncio.run(main())


def test_a_front_that_was_never_opened_says_so():
    with pytest.raises(LabkitError, match="async with"):
        asyncio.run(Front(build()).complete(ask(1)))
