"""Many requests in one forward pass: requests, schedulers, sampling and the engine that runs them.

with engine_for(load("labcoder")) as engine:
    for ticket in engine.run([Request(prompt="def mean(values):"), Request(prompt="class Stack:")]):
        print(ticket.first.text, ticket.first.reason)

One request's path, in reading order: `Engine.submit` (engine), `Intake` (intake), `Scheduler.schedule` (scheduler,
with its policy), `ModelRunner.launch` (model_runner, then cache and kernels), `BatchSampler.sample` (sampler),
`Engine._accept` and `Output` (output).
"""

from labkit.batch.build import blocks_that_fit, engine_for
from labkit.batch.engine import Engine
from labkit.batch.front import Front
from labkit.batch.metrics import StepRecord
from labkit.batch.policy import Batches, Continuous, Policy, Queue, dynamic, one_at_a_time, static
from labkit.batch.proposer import Proposer
from labkit.batch.replay import Replay, replay
from labkit.batch.request import Event, Reason, Request, Sample, Ticket
from labkit.batch.sampling import Sampling
from labkit.batch.scheduler import Scheduler
from labkit.batch.virtual import CostModel, CostRunner, VirtualClock
from labkit.batch.workload import Arrival, skewed, workload

__all__ = [
    "Arrival",
    "Batches",
    "Continuous",
    "CostModel",
    "CostRunner",
    "Engine",
    "Event",
    "Front",
    "Policy",
    "Proposer",
    "Queue",
    "Reason",
    "Replay",
    "Request",
    "Sample",
    "Sampling",
    "Scheduler",
    "StepRecord",
    "Ticket",
    "VirtualClock",
    "blocks_that_fit",
    "dynamic",
    "engine_for",
    "one_at_a_time",
    "replay",
    "skewed",
    "static",
    "workload",
]
