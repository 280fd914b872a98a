"""Runs steps on a model: lay the step out, one forward pass, one draw for every row.

The step's numbers (ids, positions, slots, block tables …) are put together on the host and cross to the device
in one copy (`Staging`), or go where a captured CUDA graph reads them. Tokens stay on the device between steps: a
row that decodes takes its input from where the step before has put it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from labkit.batch.row import UNKNOWN, Row, Step, Work
from labkit.batch.runner import Drawn
from labkit.batch.sampler import BatchSampler
from labkit.batch.sampling import Sampled, Top
from labkit.batch.staging import Staging
from labkit.cache.attention import install, remove
from labkit.cache.numbers import Numbers, block_table
from labkit.cache.pack import Pack, View, forward
from labkit.cache.paged import PagedCache
from labkit.kernels.layout import Layout
from labkit.models import LM


class Replay(Protocol):
    """Runs steps that were captured before."""

    def run(self, step: Numbers) -> torch.Tensor | None:
        """Logits of the wanted places, or None where the step was not captured."""


@dataclass(frozen=True)
class ModelFlight:
    """A step whose draws are on their way to the host."""

    step: Step
    sampled: Sampled
    done: torch.cuda.Event | None

    def wait(self) -> list[Drawn]:
        """Wait for the copies, and take the draws apart by row."""
        if self.done is not None:
            self.done.synchronize()
        tokens, bad = self.sampled.tokens.tolist(), self._listed(self.sampled.bad)
        logprobs, top = self._listed(self.sampled.logprobs), self._top()
        drawn, place = [], 0
        for work in self.step.works:
            here = slice(place, place + work.wanted)
            asked = work.row.request.sampling.logprobs
            drawn.append(
                Drawn(
                    tokens[here],
                    any(bad[here]),
                    logprobs[here] if asked is not None else None,
                    [dict(list(found.items())[:asked]) for found in top[here]] if asked else None,
                )
            )
            place += work.wanted
        return drawn

    def _listed(self, values: torch.Tensor | None) -> list:
        return [] if values is None else values.tolist()

    def _top(self) -> list[dict[int, float]]:
        top = self.sampled.top
        if top is None:
            return []
        pairs = zip(top.ids.tolist(), top.logprobs.tolist(), strict=True)
        return [dict(zip(ids, values, strict=True)) for ids, values in pairs]


class ModelRunner:
    """Runs steps on a model whose attention it replaces until it is closed.

    Args:
        lm: the model.
        cache: its keys and values.
        rows: rows at most.
        graphs: makes the CUDA graphs that steps are replayed from, if any; called with each row's newest token
            (int64 [rows], on the device), it gives what replays.
    """

    def __init__(
        self, lm: LM, cache: PagedCache, rows: int, *, graphs: Callable[[torch.Tensor], Replay] | None = None
    ) -> None:
        self.lm = lm
        self.cache = cache
        self.overlaps = lm.device.type == "cuda"
        self._sampler = BatchSampler(rows, lm.config.vocab_size, lm.device)
        self._last = torch.zeros(rows, dtype=torch.long, device=lm.device)  # each slot's newest token
        self._staging, self._draws = Staging(lm.device), Staging(lm.device)
        self._lives: dict[int, tuple[int, int]] = {}
        self._graphs: Replay | None = None
        install(lm.model)
        try:
            with torch.inference_mode():
                self._graphs = graphs(self._last) if graphs else None
        except BaseException:
            remove(lm.model)
            raise

    def close(self) -> None:
        """Give the model its own attention back, and the memory of keys and values to the device; once only."""
        self._graphs = None
        remove(self.lm.model)
        self.cache.close()

    @torch.inference_mode()
    def launch(self, step: Step) -> ModelFlight:
        """Run a step. On a GPU it is under way when this returns."""
        for work in step.works:
            self._seat(work.row)
        self.cache.run_copies()
        drawing = [work.row.slot for work in step.works for _ in range(work.wanted)]
        logits = self._logits(self._numbers(step.works))
        index, seats = self._draws.send(_counters(step.works), drawing)
        sampled = self._sampler.sample(logits, drawing, index, check=True, places=seats)
        if drawing:
            self._sampler.observe(drawing, sampled.tokens)
            self._last.index_copy_(0, seats, sampled.tokens)
        return self._to_host(step, sampled)

    def _logits(self, numbers: Numbers) -> torch.Tensor:
        """Of the wanted places: replayed if the step is captured, else launched kernel by kernel."""
        logits = None if self._graphs is None else self._graphs.run(numbers)
        return forward(self.lm, self._pack(numbers)) if logits is None else logits

    def _seat(self, row: Row) -> None:
        """Tell the sampler about a row that has just taken its slot."""
        life = (row.number, row.admissions)
        if self._lives.get(row.slot) != life:
            self._lives[row.slot] = life
            sampling, prompt = row.request.sampling, row.tokens[: row.prompt]
            self._sampler.set(row.slot, sampling, row.seed, prompt, row.tokens[row.prompt :])

    def _numbers(self, works: Sequence[Work]) -> Numbers:
        """The step as the model sees it."""
        owners: list[int] = []
        for work in works:
            owners += [work.row.slot if token == UNKNOWN else -1 for token in work.ids()]
        return Numbers(
            [token for work in works for token in work.ids()],
            [position for work in works for position in range(work.start, work.stop)],
            [slot for work in works for slot in self._slots(work)],
            owners,
            _wanted(works),
            [work.tokens for work in works],
            [work.stop for work in works],
            block_table([self.cache.tables.rows[work.row.number].blocks for work in works]),
        )

    def _pack(self, step: Numbers) -> Pack:
        """The step on the device."""
        unknown = [place for place, owner in enumerate(step.owners) if owner >= 0]
        owners = [step.owners[place] for place in unknown]
        decodes = step.decodes
        ids, positions, slots, wanted, lengths, starts, unknowns, owned, table = self._staging.send(
            step.ids, step.positions, step.slots, step.wanted, step.lengths, step.starts(decodes), unknown, owners,
            step.table,
        )  # fmt: skip
        if unknown:
            ids.index_copy_(0, unknowns, self._last.index_select(0, owned))
        layout = Layout(
            decodes,
            tuple(step.queries),
            tuple(step.lengths),
            slots,
            table.view(step.table.shape).int(),
            lengths.int(),
            starts.int(),
        )
        return Pack(ids[None], positions[None], wanted, View(layout, self.cache.layers))

    def _slots(self, work: Work) -> list[int]:
        return self.cache.tables.slots(work.row.number, work.start, work.stop)

    def _to_host(self, step: Step, sampled: Sampled) -> ModelFlight:
        if not self.overlaps:
            return ModelFlight(step, sampled, None)
        top = sampled.top and Top(_fetch(sampled.top.ids), _fetch(sampled.top.logprobs))
        logprobs = None if sampled.logprobs is None else _fetch(sampled.logprobs)
        bad = None if sampled.bad is None else _fetch(sampled.bad)
        copied = Sampled(_fetch(sampled.tokens), logprobs, top, bad)
        done = torch.cuda.Event()
        done.record()
        return ModelFlight(step, copied, done)


def _fetch(tensor: torch.Tensor) -> torch.Tensor:
    """A copy on the host that is complete once the stream gets there."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)


def _counters(works: Sequence[Work]) -> list[int]:
    """For each draw, how many came before in its row."""
    return [work.first + i for work in works for i in range(work.wanted)]


def _wanted(works: Sequence[Work]) -> list[int]:
    """Places in the pack whose logits are wanted."""
    places: list[int] = []
    end = 0
    for work in works:
        end += work.tokens
        places += range(end - work.wanted, end)
    return places
