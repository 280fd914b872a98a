"""Where one request's time goes: six stages measured on a real run, and what measuring them costs.

Stages, in order: preprocessing (tokenise, move to the device), compile (graph capture and optimisation),
prefill and decode (the two halves of the forward pass), sampling (choose a token and fetch its number),
postprocessing (incremental detokenisation, what streaming sends). They sum to the end-to-end time with the
remainder shown: loop overhead and the clocks themselves.

On an asynchronous device a stage ends only when its work has, so the clock waits at every border. That
waiting costs time of its own: the same request without it runs in between, and both totals are reported.
Its stages are reported too, as a warning: unsynchronised, whoever first touches a result pays for all the
work before it, and the forward pass turns up under "sampling".
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from labkit.errors import LabkitError
from labkit.profile.budget import STAGES, StageReport, StageRun
from labkit.profile.loop import Forward, Prompt, check_length, dynamic_cache, plain_forward, prompt_ids
from labkit.profile.nvtx import annotate
from labkit.profile.sampling import Sampler
from labkit.profile.streaming import StreamDecoder
from labkit.timing import Clock, synchronize

if TYPE_CHECKING:
    from labkit.models import LM


class StageClock:
    """Adds up the time of named stages of one run.

    Args:
        device: what to wait for at the borders.
        synchronise: wait at stage borders. The whole run waits at its start and end in any case.
        now: the clock [s].
    """

    def __init__(
        self, device: torch.device | str, *, synchronise: bool = True, now: Clock = time.perf_counter
    ) -> None:
        self.device = device
        self.synchronise = synchronise
        self.now = now
        self.seconds: dict[str, float] = dict.fromkeys(STAGES, 0.0)
        self._began = 0.0

    def begin(self) -> None:
        """Start the end-to-end clock."""
        synchronize(self.device)
        self._began = self.now()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a piece of a stage; pieces of one stage add up."""
        if self.synchronise:
            synchronize(self.device)
        start = self.now()
        with annotate(name):
            yield
            if self.synchronise:
                synchronize(self.device)
        self.seconds[name] += self.now() - start

    def end(self) -> StageRun:
        """Stop the end-to-end clock."""
        synchronize(self.device)
        return StageRun(dict(self.seconds), self.now() - self._began)


@torch.inference_mode()
def staged_run(
    lm: LM,
    prompt: Prompt,
    new_tokens: int,
    clock: StageClock,
    *,
    forward: Forward,
    make_cache: Callable[[], Any],
    sampler: Sampler,
) -> tuple[StageRun, str]:
    """One request through the plain loop, each part under its stage; returns the run and its text."""
    clock.begin()
    with clock.stage("preprocessing"):
        ids = prompt_ids(lm, prompt)
    stream = StreamDecoder(lm.tokenizer)
    pieces: list[str] = []
    cache = make_cache()
    with clock.stage("prefill"):
        logits = forward(ids, cache)
    for index in range(new_tokens):
        with clock.stage("sampling"):
            token = sampler(logits)
            number = int(token)  # to the host: a user is sent text, not a tensor
        with clock.stage("postprocessing"):
            pieces.append(stream.push(number))
        if index + 1 < new_tokens:
            with clock.stage("decode"):
                logits = forward(token[:, None], cache)
    with clock.stage("postprocessing"):
        pieces.append(stream.flush())
    return clock.end(), "".join(pieces)


def stage_report(
    lm: LM,
    prompt: Prompt,
    new_tokens: int,
    *,
    compile: bool = False,
    backend: str = "inductor",
    sampler: Sampler | None = None,
    repeats: int = 5,
    warmup: int = 1,
    now: Clock = time.perf_counter,
) -> StageReport:
    """Measure the stages of one request, synchronised and not, in turn.

    Args:
        prompt: text, so that preprocessing includes tokenising; ids are accepted.
        new_tokens: exactly this many are generated.
        compile: decode through torch.compile with a static cache (prefill stays eager, as transformers does
            it). The first request then pays for the compilation, shown as its own stage; the others show the
            steady state. Off: the stage is shown as zero.
        backend: of torch.compile.
        sampler: how a token is chosen; greedy when None.
        repeats: of each kind of run; the one with the median total is shown, all are kept.

    Raises:
        LabkitError: repeats < 1, an empty prompt, or too many tokens for the model.
    """
    if repeats < 1:
        raise LabkitError(f"{repeats} repeats give no report.", "Ask for at least one.")
    sampler = sampler or Sampler()
    ids = prompt_ids(lm, prompt)
    check_length(lm, ids.shape[1], new_tokens)

    request = _Request(lm, prompt, new_tokens, sampler, now)
    for _ in range(warmup):  # eager kernels and allocator first, so that compiling is not blamed for them
        request.run(plain_forward(lm), lambda: dynamic_cache(lm))
    first = None
    forward, make_cache = plain_forward(lm), lambda: dynamic_cache(lm)
    if compile:
        forward, make_cache = compiled(lm, ids.shape[1] + new_tokens, backend)
        with warnings.catch_warnings():  # torch advises TF32, which only float32 weights would use
            warnings.filterwarnings("ignore", message="TensorFloat32")
            first = request.run(forward, make_cache)
    runs: dict[bool, list[StageRun]] = {True: [], False: []}
    for index in range(repeats):
        for waits in (True, False) if index % 2 == 0 else (False, True):
            runs[waits].append(request.run(forward, make_cache, synchronise=waits))
    return StageReport(
        model=lm.name,
        device=str(lm.device),
        prompt_tokens=ids.shape[1],
        new_tokens=new_tokens,
        text=request.text,
        backend=backend if compile else None,
        first=first,
        runs=tuple(runs[True]),
        unsynchronised_runs=tuple(runs[False]),
    )


@dataclass
class _Request:
    """The request that every run of a report repeats; `text` is what the last run wrote."""

    lm: LM
    prompt: Prompt
    new_tokens: int
    sampler: Sampler
    now: Clock
    text: str = ""

    def run(self, forward: Forward, make_cache: Callable[[], Any], *, synchronise: bool = True) -> StageRun:
        self.sampler.restart()
        clock = StageClock(self.lm.device, synchronise=synchronise, now=self.now)
        taken, self.text = staged_run(
            self.lm,
            self.prompt,
            self.new_tokens,
            clock,
            forward=forward,
            make_cache=make_cache,
            sampler=self.sampler,
        )
        return taken


def compiled(lm: LM, length: int, backend: str) -> tuple[Forward, Callable[[], Any]]:
    """A forward whose decode step goes through torch.compile, and the static cache of `length` it needs.

    One cache serves every run: its addresses are part of the compiled graph, so it is emptied, not replaced.
    """
    from transformers import StaticCache

    torch.compiler.reset()  # an earlier compilation in this process would make this one look free
    eager = plain_forward(lm)
    step = torch.compile(eager, backend=backend)
    cache = StaticCache(config=lm.config, max_cache_len=length)

    def forward(ids: torch.Tensor, kept: Any) -> torch.Tensor:
        return step(ids, kept) if ids.shape[1] == 1 else eager(ids, kept)

    def emptied() -> Any:
        cache.reset()
        return cache

    return forward, emptied
