"""What each policy lets in and when, who goes first, who gives way, and what overlapping saves."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from oracle import OracleRunner

from labkit.batch.engine import Engine
from labkit.batch.metrics import StepRecord
from labkit.batch.policy import Batches, Continuous, Queue, dynamic, one_at_a_time, static
from labkit.batch.request import Reason, Request
from labkit.batch.scheduler import Scheduler
from labkit.batch.virtual import CostModel, CostRunner, VirtualClock
from labkit.cache.tables import BlockTables
from labkit.errors import LabkitError


def build(policy, *, blocks=200, size=4, rows=16, budget=64, overlaps=False, head_start=10.0, step=1.0):
    clock, tables = VirtualClock(), BlockTables(blocks, size)
    runner = OracleRunner(tables, overlaps=overlaps)
    scheduler = Scheduler(tables, policy, rows=rows, step_tokens=budget, head_start=head_start)
    engine = Engine(runner, scheduler, clock=clock)

    def steps(count):
        for _ in range(count):
            engine.step()
            clock.advance(step)

    return engine, steps, clock


def ask(new=4, prompt=5, **more):
    return Request(prompt=list(range(1, prompt + 1)), max_tokens=new, ignore_eos=True, **more)


def test_policies_answer_by_the_queue_alone():
    some = Queue(waiting=3, oldest=2.0, running=2, closing=False)
    idle = Queue(waiting=3, oldest=2.0, running=0, closing=False)
    assert Continuous().admit(some, 9.0) == 3 and Continuous(4).admit(some, 9.0) == 2
    assert Continuous().wakes(idle) == math.inf
    assert one_at_a_time().admit(some, 9.0) == 0 and one_at_a_time().admit(idle, 9.0) == 1
    assert static(4).admit(idle, 1e9) == 0 and static(3).admit(idle, 0.0) == 3
    assert static(4).admit(Queue(1, 2.0, 0, True), 0.0) == 4
    assert dynamic(4, 5.0).admit(idle, 6.9) == 0 and dynamic(4, 5.0).admit(idle, 7.0) == 4
    assert dynamic(4, 5.0).wakes(idle) == 7.0 and dynamic(4, 5.0).wakes(some) == math.inf


@pytest.mark.parametrize(
    "make, name",
    [
        (lambda: Batches(0, 1.0), "size is 0"),
        (lambda: Batches("4"), "size is '4'"),
        (lambda: Batches(2.5), "size is 2.5"),
        (lambda: Batches(3, -1.0), "window is -1.0"),
        (lambda: Batches(3, math.nan), "window is nan"),
        (lambda: Continuous(0), "rows is 0"),
        (lambda: Continuous("4"), "rows is '4'"),
        (lambda: build(static), "is no policy"),
        (lambda: build(Continuous(), rows=0), "rows is 0"),
        (lambda: build(Continuous(), head_start=math.nan), "head_start is nan"),
    ],
)
def test_policies_and_schedulers_that_cannot_be_are_refused(make, name):
    with pytest.raises(LabkitError, match=name):
        make()


def test_without_a_window_a_request_waits_for_ever_and_with_one_it_does_not():
    engine, steps, clock = build(static(4))
    lonely = engine.submit(ask())
    steps(50)
    assert not lonely.first.tokens and engine.wakes == math.inf
    engine, steps, clock = build(dynamic(4, 5.0))
    lonely = engine.submit(ask())
    assert engine.wakes == 5.0
    steps(50)
    assert lonely.first.reason is Reason.LENGTH and lonely.first.stamps[0] == 5.0


def test_nobody_joins_a_batch_that_runs_and_everybody_joins_a_continuous_one():
    starts = {}
    for policy in (static(2), Continuous()):
        engine, steps, _ = build(policy)
        first = [engine.submit(ask(new)) for new in (2, 9)]
        steps(3)
        late = [engine.submit(ask(2)) for _ in range(2)]
        steps(30)
        assert all(ticket.done for ticket in first + late)
        starts[type(policy)] = late[0].first.stamps[0]
    assert starts[Continuous] == 3.0 and starts[Batches] == 9.0


def test_a_vip_overtakes_and_its_head_start_ends():
    engine, steps, clock = build(Continuous(1), head_start=10.0)
    running = engine.submit(ask(3))
    steps(1)
    plain = engine.submit(ask(3))
    vip = engine.submit(ask(3, priority=-1))
    steps(20)
    assert running.first.stamps[-1] < vip.first.stamps[0] < plain.first.stamps[0]

    engine, steps, clock = build(Continuous(1), head_start=10.0)
    plain = engine.submit(ask(1))
    for _ in range(100):  # a VIP arrives at every step, for ever
        engine.submit(ask(2, priority=-1))
        steps(1)
    assert plain.done and 10 <= plain.first.stamps[0] <= 30


def test_prompts_are_cut_into_pieces_and_decodes_run_beside_them():
    engine, steps, _ = build(Continuous(), budget=16, rows=16)
    short = engine.submit(ask(12, prompt=3))
    steps(2)
    long = engine.submit(Request(prompt=[9] * 60, max_tokens=2, ignore_eos=True))
    steps(12)
    assert short.first.stamps == [float(i) for i in range(12)]  # no step without a token
    assert long.done and long.first.stamps[0] == 5.0  # 60 tokens in pieces of 15
    sizes = [step.tokens for step in engine.metrics.steps]
    assert max(sizes) == 16


def test_the_last_in_order_gives_way_and_the_first_never():
    engine, steps, _ = build(Continuous(), blocks=8, size=2)
    tickets = [engine.submit(ask(9, prompt=4)) for _ in range(3)]
    steps(200)
    assert [ticket.first.reason for ticket in tickets] == [Reason.LENGTH] * 3
    assert tickets[0].preemptions == 0 and tickets[2].preemptions > 0
    assert tickets[0].first.stamps[-1] <= min(ticket.first.stamps[-1] for ticket in tickets[1:])


def test_nobody_is_preempted_with_the_last_token_in_flight():
    engine, steps, _ = build(Continuous(), blocks=5, size=2, overlaps=True)
    old = engine.submit(ask(6, prompt=4))
    steps(1)
    young = engine.submit(Request(prompt=[7, 7, 7], max_tokens=1, ignore_eos=True))
    steps(60)
    assert old.done and young.done and young.preemptions == 0


def test_what_outgrows_the_pool_fails_alone():
    engine, steps, _ = build(Continuous(), blocks=4, size=2)
    big = engine.submit(ask(50, prompt=4))
    small = engine.submit(ask(2, prompt=3))
    steps(60)
    assert big.first.reason is Reason.MEMORY and len(big.first.tokens) == 5
    assert small.first.reason is Reason.LENGTH and engine.idle


def test_a_prompt_longer_than_the_pool_is_refused_at_once():
    engine, *_ = build(Continuous(), blocks=4, size=2)
    with pytest.raises(LabkitError, match="9 tokens, and the whole KV pool holds 8"):
        engine.submit(ask(1, prompt=9))
    assert engine.idle


def test_overlapping_keeps_the_device_busy_in_every_step():
    engine, steps, _ = build(Continuous(), overlaps=True)
    ticket = engine.submit(ask(20))
    steps(22)
    assert ticket.done and engine.runner.steps == 20  # a token each, none of them a step late
    assert ticket.first.stamps == [float(i) for i in range(1, 21)]


@pytest.mark.parametrize("overlaps", [False, True])
def test_steps_lie_end_to_end_and_each_takes_what_its_launch_took(overlaps):
    engine, _, clock = build(Continuous(), overlaps=overlaps)
    launch = engine.runner.launch

    def slow(step):  # the device is done before the next step is launched: Python is the floor
        clock.advance(0.025)
        return launch(step)

    engine.runner.launch = slow
    engine.run([ask(8), ask(8, prompt=70)])
    records = engine.metrics.steps
    assert len(records) > 8 and all(record.seconds == pytest.approx(0.025) for record in records)
    assert sum(record.seconds for record in records) == pytest.approx(clock())


def test_a_late_end_is_invisible():
    lists = []
    for overlaps in (False, True):
        engine, steps, _ = build(Continuous(), overlaps=overlaps)
        tickets = [engine.submit(Request(prompt=[n], max_tokens=60, stop_ids=[3, 4])) for n in range(9)]
        steps(70)
        lists.append([(t.first.tokens, t.first.reason) for t in tickets])
    assert lists[0] == lists[1]


def test_samples_share_the_prompt_and_draw_for_themselves():
    engine, steps, _ = build(Continuous(), size=4)
    ticket = engine.submit(ask(5, prompt=9, samples=4))
    steps(1)
    assert engine.scheduler.tables.pool.used == 3
    steps(20)
    assert len({tuple(sample.tokens) for sample in ticket.samples}) == 4
    prompts = sum(tokens for step in engine.metrics.steps for *_, tokens in step.rows) - 4 * 4
    assert prompts == 9 + 3  # the prompt once, and its last token again for each of the others


def test_one_system_prompt_is_computed_once():
    engine, steps, _ = build(Continuous(), size=4)
    system = list(range(20))
    first = engine.submit(Request(prompt=[*system, 30], max_tokens=2, ignore_eos=True))
    steps(4)
    rest = [engine.submit(Request(prompt=[*system, n], max_tokens=2, ignore_eos=True)) for n in (31, 32)]
    other = engine.submit(Request(prompt=[*system, 33], max_tokens=2, ignore_eos=True, salt="x"))
    steps(4)
    assert first.cached_tokens == 0 and [t.cached_tokens for t in rest] == [20, 20]
    assert other.cached_tokens == 0


def test_a_deadline_ends_what_waits_and_what_runs():
    engine, steps, _ = build(one_at_a_time())
    runs, waits = engine.submit(ask(50, deadline=4.0)), engine.submit(ask(5, deadline=3.0))
    assert engine.wakes == 3.0
    steps(8)
    assert runs.first.reason is Reason.DEADLINE and len(runs.first.tokens) == 4
    assert waits.first.reason is Reason.DEADLINE and not waits.first.tokens
    assert engine.idle


def test_costs_are_recovered_from_steps_that_they_made():
    clock, tables = VirtualClock(), BlockTables(4000, 16)
    truth = CostModel(step=0.01, token=2e-5, row=1e-4, context=1e-7, pair=3e-8)
    engine = Engine(CostRunner(clock, truth), Scheduler(tables, Continuous(), rows=32), clock=clock)
    engine.run([ask(5 + 3 * n, prompt=20 + 37 * n) for n in range(30)])
    found = CostModel.fit(engine.metrics.steps)
    for name in ("step", "token", "row", "context", "pair"):
        assert getattr(found, name) == pytest.approx(getattr(truth, name), rel=1e-3)
    with pytest.raises(LabkitError, match="cannot tell"):
        CostModel.fit(engine.metrics.steps[:3])


def test_the_fit_is_the_closest_without_a_negative_part():
    """No small change of a part that stays at or above zero comes closer (the conditions of Kuhn and Tucker)."""
    for _ in range(20):
        records = [
            StepRecord(0.0, random.uniform(0.5, 2.0), (), random.randint(0, 64), random.randint(1, 64),
                       random.randint(0, 4000), random.randint(0, 9000), *[0] * 7)
            for _ in range(random.randint(6, 40))
        ]  # fmt: skip
        found = CostModel.fit(records)
        costs = np.array([found.step, found.token, found.row, found.context, found.pair])
        work = np.array([[1, r.tokens, r.decodes, r.context, r.pairs] for r in records], dtype=float)
        scaled = work / np.array([r.seconds for r in records])[:, None]
        slope = scaled.T @ (scaled @ costs - 1) / np.linalg.norm(scaled, axis=0)
        assert (costs >= 0).all() and costs.any()
        assert (slope > -1e-8).all() and np.abs(slope[costs > 0]).max() < 1e-8


def test_a_fixed_cost_is_found_where_nearly_all_of_a_step_is_fixed():
    """As on a GPU that waits for its launches: steps of 20 ms with noise, whatever their rows."""
    records = [
        StepRecord(0.0, random.uniform(0.019, 0.023), (), rows, rows, 70 * rows, 0, *[0] * 7)
        for rows in (1, 2, 4, 8, 16, 32, 64, 128, 256)
        for _ in range(12)
    ]
    for tokens, seconds in ((40, 0.021), (700, 0.03), (2048, 0.07), (2048, 0.08), (2048, 0.075)):
        records.append(StepRecord(0.0, seconds, (), 0, tokens, 0, 35 * tokens, *[0] * 7))
    assert 0.017 < CostModel.fit(records).step < 0.023
