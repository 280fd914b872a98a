"""The rungs of the ladder: one engine after the other on the same model, each with more of the stove switched on."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from labkit import fuse
from labkit.batch.bench import release
from labkit.batch.build import engine_for
from labkit.batch.engine import Engine
from labkit.batch.request import Reason, Request, Ticket
from labkit.batch.sampling import Sampling
from labkit.errors import LabkitError
from labkit.fuse import compiled
from labkit.fuse.contest import reason
from labkit.models import LM
from labkit.profile import trace
from labkit.timing import Measurement

GRAPHS = "graphs"
"""The argument of `engine_for` that captures steps in CUDA graphs."""


@dataclass(frozen=True)
class Rung:
    """What is switched on.

    Args:
        parts: arguments of `fuse.apply`; None: the model's own layers.
        graphs: run steps from CUDA graphs.
        random: on the same shape with random weights.
        compiled: layers through torch.compile, the other road (fuse.compiled).
    """

    name: str
    parts: dict[str, bool] | None = None
    graphs: bool = False
    random: bool = False
    compiled: bool = False


PLAIN = Rung("plain")
EVERYTHING = Rung("everything", {}, True)
CONTROL = Rung("everything, random weights", {}, True, True)
RUNGS = (
    PLAIN,
    Rung("fused kernels", {"merge": False}),
    Rung("merged projections", {}),
    EVERYTHING,
    Rung("graph alone", None, True),
    Rung("torch.compile, graph", None, True, compiled=True),
    CONTROL,
)
"""The first four are the ladder, each with all that came before; the others stand beside it."""


@contextmanager
def standing(lm: LM, rung: Rung, **sizes: Any) -> Iterator[Engine]:
    """An engine on a rung, whatever was fused or compiled before; afterwards nothing is.

    Args:
        sizes: further arguments of `engine_for`.
    """
    if lm.device.type == "cuda":  # elsewhere there are none
        sizes[GRAPHS] = rung.graphs
    fuse.remove(lm)
    compiled.remove(lm)
    try:
        if rung.parts is not None:
            fuse.apply(lm, **rung.parts)
        if rung.compiled:
            compiled.apply(lm)
        with warnings.catch_warnings():  # an engine that goes on without its graphs is another rung
            warnings.filterwarnings("error", message=".* runs without CUDA graphs")
            engine = engine_for(lm, **sizes)
        with engine:
            yield engine
    finally:
        fuse.remove(lm)
        compiled.remove(lm)
        release(lm)


def answer(engine: Engine, prompt: Sequence[int], new: int, seed: int) -> Ticket:
    """One request, alone, sampled at temperature 0.8.

    Raises:
        RuntimeError: it did not get all its tokens.
    """
    sampling = Sampling(temperature=0.8, seed=seed)
    ticket = engine.run([Request(prompt=tuple(prompt), max_tokens=new, ignore_eos=True, sampling=sampling)])[
        0
    ]
    if ticket.first.reason is not Reason.LENGTH:
        raise RuntimeError(ticket.first.error or f"the request ended: {ticket.first.reason}")
    return ticket


Work = Callable[[Engine, Rung, int], list[float]]
"""(engine, rung, round) → seconds."""


def in_rounds(
    models: dict[bool, LM],
    rungs: Sequence[Rung],
    work: Work,
    *,
    rounds: int,
    say: Callable[[str], None],
    **sizes: Any,
) -> dict[str, dict[str, Any]]:
    """Do some work on every rung, in rounds, up the ladder and down again.

    Args:
        models: the model, and with random weights where there is one, by `Rung.random`.

    Returns:
        name → {"runs": Measurement} or {"unavailable": why}, in the order of the rungs.
    """
    taken: dict[str, list[float]] = {rung.name: [] for rung in rungs if rung.random in models}
    failed: dict[str, str] = {}
    for number in range(rounds):
        for rung in rungs if number % 2 == 0 else reversed(rungs):
            if rung.name in failed or rung.name not in taken:
                continue
            try:
                with standing(models[rung.random], rung, **sizes) as engine:
                    taken[rung.name] += work(engine, rung, number)
            except Exception as error:  # a rung that this machine lacks is a finding; the others go on
                failed[rung.name] = reason(error)
                say(f"  {rung.name}: {failed[rung.name]}")
    return {
        name: {"unavailable": failed[name]} if name in failed else {"runs": Measurement(tuple(runs))}
        for name, runs in taken.items()
    }


def steps_traced(lm: LM, engine: Engine, prompt: Sequence[int], steps: int = 4) -> dict[str, Any]:
    """What a decode step of one row puts on the timeline.

    Returns:
        Of one step: "kernels" on the device (operators on a CPU), "launches" by the host, "busy" [s]; and "gap_share"
        of the traced time. {"unavailable": why} where profiling is not allowed.
    """
    # trace() works three times: twice plain, once recorded
    ticket = engine.submit(
        Request(
            prompt=tuple(prompt),
            max_tokens=4 * steps + 8,
            ignore_eos=True,
            sampling=Sampling(temperature=0.8),
        )
    )
    while len(ticket.first.tokens) < 2 and not ticket.done:
        engine.step()
    try:
        found = trace(lambda: [engine.step() for _ in range(steps)], lm.device)
    except LabkitError as error:
        return {"unavailable": reason(error)}
    finally:
        engine.cancel_all()
    return {
        "kernels": len(found.kernels) / steps,
        "launches": found.launches / steps,
        "busy": found.busy_seconds / steps,
        "gap_share": found.gap_share,
    }
