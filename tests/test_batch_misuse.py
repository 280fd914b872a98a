"""What an engine must survive: bad requests, interrupts, closing twice, streams read in turns, and what never ends."""

from __future__ import annotations

import asyncio
import gc
import time

import numpy as np
import pytest
import torch
from oracle import EOS, OracleRunner, alone

from labkit.batch import (
    Continuous,
    Engine,
    Front,
    Reason,
    Request,
    Sampling,
    Scheduler,
    engine_for,
    replay,
    static,
)
from labkit.batch.metrics import Metrics, StepRecord
from labkit.batch.workload import Arrival
from labkit.cache.pack import Chunk, forward
from labkit.cache.paged import PagedCache
from labkit.cache.tables import BlockTables
from labkit.errors import LabkitError
from labkit.models import load


@pytest.fixture(scope="module")
def lm():
    return load("labcoder-draft", device="cpu")


def oracle(policy=None, blocks=30, overlaps=False, rows=6, **more):
    tables = BlockTables(blocks, 4)
    runner = OracleRunner(tables, overlaps=overlaps)
    return Engine(runner, Scheduler(tables, policy or Continuous(), rows=rows, **more), eos=[EOS])


def ask(number=1, new=10, **more):
    return Request(prompt=[number] * 5, max_tokens=new, ignore_eos=True, **more)


def said(request, number=1):
    return alone(request, tuple(request.prompt), number)


BAD = {
    "prompt": [None, b"abc", [1.5], ["a"], [[1, 2]], 5, "", []],
    "max_tokens": [0, 2.5, "5", float("nan"), True, None],
    "samples": [0, 2.0, None],
    "stop": ["x", None, [5], [b"x"], [""], 5],
    "stop_ids": [None, 5, [1.5], "12"],
    "sampling": [None, {"temperature": 1}],
    "ignore_eos": ["no", 1],
    "priority": ["high", float("nan"), float("inf"), None],
    "deadline": ["5", 0, -1.0, float("nan"), float("inf")],
    "salt": [None, ["a"], 5],
}


@pytest.mark.parametrize("field, value", [(name, value) for name, values in BAD.items() for value in values])
def test_a_field_that_cannot_be_met_is_named(field, value):
    with pytest.raises(LabkitError, match=f"(?i){field}"):
        Request(**{"prompt": [1, 2], field: value})


@pytest.mark.parametrize("field", ["temperature", "top_p"])
@pytest.mark.parametrize("value", [10**400, "1", True, float("nan"), None])
def test_numbers_of_sampling_are_checked(field, value):
    with pytest.raises(LabkitError, match=field):
        Sampling(**{field: value})


def test_rows_of_numbers_of_any_kind_are_taken():
    request = Request(
        prompt=np.array([3, 4]), stop=(text for text in "ab"), stop_ids=iter([7, 8]), max_tokens=np.int64(5)
    )
    assert request.prompt == (3, 4) and request.stop == ("a", "b") and request.stop_ids == (7, 8)
    assert Request(prompt=torch.tensor([3, 4])).prompt == (3, 4)
    assert Sampling(temperature=np.float32(0.5), top_k=np.int32(4)) == Sampling(temperature=0.5, top_k=4)
    engine = oracle()
    ends = engine.run([Request(prompt=[1] * 5, max_tokens=40, stop_ids=iter([2]), sampling=Sampling(seed=1))])
    assert ends[0].first.tokens == said(Request(prompt=[1] * 5, max_tokens=40, stop_ids=[2]))


@pytest.mark.parametrize(
    "bad",
    [
        {"prompt": [5, 10**6]},
        {"prompt": [5, -1]},
        {"prompt": [2**70]},
        {"prompt": "a\ud800"},
        {"prompt": "x", "sampling": Sampling(logprobs=10**6)},
    ],
    ids=str,
)
def test_what_the_model_cannot_take_is_refused_at_submission_and_harms_nobody(lm, bad):
    good = Request(prompt="def mean(values):\n    ", max_tokens=8)
    with engine_for(lm, blocks=64) as engine:
        want = engine.run([good])[0].first.tokens
        ticket = engine.submit(good)
        engine.step()
        with pytest.raises(LabkitError):
            engine.submit(Request(**bad))
        engine.drain()
        assert ticket.first.tokens == want and ticket.first.reason in (Reason.LENGTH, Reason.EOS)


@pytest.mark.parametrize("wrong", ["text", None, {"prompt": "x"}])
def test_what_is_no_request_is_refused(wrong):
    with pytest.raises(LabkitError, match="submitted"):
        oracle().submit(wrong)
    with pytest.raises(LabkitError, match="several|submitted"):
        oracle().run("text" if wrong == "text" else [wrong])
    with pytest.raises(LabkitError, match="several"):
        oracle().run(ask())


def test_if_one_of_several_can_never_run_none_is_queued():
    engine = oracle(blocks=4)
    with pytest.raises(LabkitError, match="KV pool"):
        engine.run([ask(), Request(prompt=[1] * 500)])
    assert engine.idle and engine.scheduler.waiting == 0


@pytest.mark.parametrize(
    "setting",
    [{"blocks": 2.5}, {"block_size": 0}, {"rows": -1}, {"step_tokens": 0}, {"seed": None}, {"ageeing": 3}],
    ids=str,
)
def test_settings_of_an_engine_are_named_and_the_model_stays_as_it_was(lm, setting):
    before = lm.config._attn_implementation
    with pytest.raises(LabkitError, match=next(iter(setting))):
        engine_for(lm, **{"blocks": 8, **setting})
    assert lm.config._attn_implementation == before
    with pytest.raises(LabkitError, match="load"):
        engine_for("labcoder")


@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("moment", ["stop_launch", "stop_wait"])
def test_an_interrupt_loses_nothing(moment, overlaps):
    engine = oracle(overlaps=overlaps, blocks=12)
    asked = [ask(n, 20, sampling=Sampling(seed=n)) for n in (1, 2, 3)]
    tickets = [engine.submit(request) for request in asked]
    for steps in (1, 4, 2):
        for _ in range(steps):
            engine.step()
        setattr(engine.runner, moment, True)
        with pytest.raises(KeyboardInterrupt):
            engine.drain()
    engine.drain()
    for number, (ticket, request) in enumerate(zip(tickets, asked, strict=True), 1):
        assert ticket.first.tokens == said(request, number) and len(ticket.first.stamps) == 20
    assert engine.scheduler.tables.pool.used == 0


def test_an_interrupt_between_two_rows_leaves_samples_whole(lm):
    asked = [Request(prompt=f"def f{n}(x):\n    ", max_tokens=16, stop=["\n\n"]) for n in range(3)]
    with engine_for(lm, blocks=64) as engine:
        want = [(ticket.first.text, ticket.first.tokens) for ticket in engine.run(asked)]
        tickets = [engine.submit(request) for request in asked]
        take, calls = engine._output.take, []

        def stopping(*arguments):
            calls.append(1)
            if len(calls) in (2, 9):
                raise KeyboardInterrupt
            found = take(*arguments)
            if len(calls) == 14:
                raise KeyboardInterrupt
            return found

        engine._output.take = stopping
        interrupts = 0
        while not engine.idle:
            try:
                engine.drain()
            except KeyboardInterrupt:
                interrupts += 1
        assert interrupts == 3
        assert [(ticket.first.text, ticket.first.tokens) for ticket in tickets] == want


def test_closing_twice_leaves_another_engine_alone(lm):
    request = Request(prompt="def mean(values):\n    ", max_tokens=8)
    own = lm.config._attn_implementation
    one, other = engine_for(lm, blocks=16), engine_for(lm, blocks=16)
    want = other.run([request])[0].first.tokens
    one.close()
    one.close()
    assert other.run([request])[0].first.tokens == want
    other.close()
    assert lm.config._attn_implementation == own


def test_an_engine_that_is_dropped_gives_the_model_back(lm):
    own = lm.config._attn_implementation
    engine = engine_for(lm, blocks=16)
    engine.run([Request(prompt="x", max_tokens=2)])
    assert lm.config._attn_implementation != own
    del engine
    gc.collect()
    assert lm.config._attn_implementation == own


def test_a_pack_on_a_model_with_its_own_attention_is_refused(lm):
    cache = PagedCache(lm, 4)
    cache.open(0, [1, 2])
    with pytest.raises(LabkitError, match="own attention"):
        forward(lm, cache.pack([Chunk(0, 0, [1, 2])]))


def test_a_chunk_that_was_not_finite_is_never_found_by_others(lm):
    request = Request(prompt=list(range(1, 100)), max_tokens=4)
    with engine_for(lm, blocks=64, step_tokens=256, rows=8) as engine:
        want = engine.run([Request(prompt=request.prompt, max_tokens=4, salt="other")])[0].first.tokens
        engine.scheduler.step_tokens = 40  # the prompt takes three steps
        embedding = lm.model.get_input_embeddings()
        hook = embedding.register_forward_hook(lambda module, ids, out: out * float("nan"))
        ticket = engine.submit(request)
        engine.step()
        hook.remove()
        engine.drain()
        assert ticket.first.reason is Reason.FAILED
        again = engine.run([request])[0]
        assert again.first.tokens == want and again.cached_tokens == 0


def test_streams_can_be_read_in_turns():
    engine = oracle()
    asked = [ask(n, 12, sampling=Sampling(seed=n)) for n in (1, 2)]
    streams = [engine.stream(request) for request in asked]
    heard = [[], []]
    while any(streams):
        for place, stream in enumerate(streams):
            event = next(stream, None) if stream else None
            if event is None:
                streams[place] = None
            else:
                heard[place] += event.tokens
    assert heard == [said(request, number) for number, request in enumerate(asked, 1)]


def test_a_stream_does_not_wait_for_a_full_batch():
    assert sum(len(event.tokens) for event in oracle(static(4)).stream(ask())) == 10


@pytest.mark.parametrize("policy", [Continuous(2), static(2)])
def test_samples_of_one_prompt_count_as_rows(policy):
    engine = oracle(policy)
    ticket = engine.run([ask(samples=5)])[0]
    assert max(len(step.rows) for step in engine.metrics.steps) == 2
    assert all(len(sample.tokens) == 10 for sample in ticket.samples)


def test_what_is_kept_of_the_past_is_bounded():
    metrics = Metrics(keep=100)
    for number in range(1000):
        metrics.add(StepRecord(number, number + 1, ((0, 0, 1),) * 7, *[0] * 11))
    assert 100 <= sum(len(step.rows) for step in metrics.steps) <= 207
    assert metrics.count == 1000 and metrics.steps[-1].start == 999
    engine = oracle(rows=1)
    engine.submit(ask(new=50))
    engine.step()
    for _ in range(1000):
        engine.cancel(engine.submit(ask()))
    assert len(engine.scheduler._heap) < 200


def test_latencies_are_those_of_requests_that_got_a_token():
    engine = oracle(blocks=4)
    late = Request(prompt=[1] * 5, max_tokens=3, deadline=1e-9)
    run = replay(engine, [Arrival(ask(new=3)), Arrival(late)])
    assert run.ttft(95) > 0 and run.e2e(50) >= run.ttft(50)


@pytest.mark.parametrize("bad", ["a\ud800", [10**7]])
def test_a_bad_request_fails_alone_behind_asyncio(lm, bad):
    async def main():
        with engine_for(lm, blocks=64) as engine:
            async with Front(engine) as front:
                good = asyncio.create_task(front.complete(Request(prompt="def f(", max_tokens=30)))
                await asyncio.sleep(0.02)
                wrong = asyncio.create_task(front.complete(Request(prompt=bad)))
                same = asyncio.create_task(front.complete(Request(prompt="x", max_tokens=3)))
                with pytest.raises(LabkitError):
                    await asyncio.wait_for(wrong, 20)
                return await asyncio.wait_for(asyncio.gather(good, same), 60)

    assert all(ticket.first.reason is not Reason.FAILED for ticket in asyncio.run(main()))


def slowly(engine, seconds):
    step = engine.step

    def slow():
        events = step()
        time.sleep(seconds)
        return events

    engine.step = slow
    return engine


@pytest.mark.parametrize("new", [1, 100])
def test_closing_hands_out_what_the_last_step_gave(new):
    engine = slowly(oracle(), 0.2)

    async def main():
        heard = []

        async def read(front):
            async for event in front.stream(ask(new=new)):
                heard.append(event)

        async with Front(engine) as front:
            reader = asyncio.create_task(read(front))
            await asyncio.sleep(0.1)
        await asyncio.wait_for(reader, 5)
        return heard

    heard = asyncio.run(main())
    assert sum((event.tokens for event in heard), ()) == tuple(heard[0].ticket.first.tokens)
    assert heard[-1].reason is (Reason.LENGTH if new == 1 else Reason.CANCELLED) and engine.idle


def test_a_close_that_is_cancelled_leaves_nothing_running():
    engine = slowly(oracle(), 0.3)

    async def serve():
        async with Front(engine) as front:
            task = asyncio.create_task(front.complete(ask(new=50)))
            await asyncio.sleep(0.1)
        return task

    async def main():
        task = asyncio.create_task(serve())
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert engine.idle and engine.scheduler.tables.pool.used == 0
