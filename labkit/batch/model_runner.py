"""Runs steps on a model: lay the step out, one forward pass, one draw for every row.

The step's numbers (ids, positions, slots, block tables …) are put together on the host and cross to the device
in one copy (`Staging`). Tokens stay on the device between steps: a row that decodes takes its input from where the step
before has put it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from labkit.batch.row import UNKNOWN, Row, Step, Work
from labkit.batch.runner import Drawn
from labkit.batch.sampler import BatchSampler
from labkit.batch.sampling import Sampled, Top
from labkit.batch.staging import Staging
from labkit.cache.attention import install, remove
from labkit.cache.pack import Pack, View, forward
from labkit.cache.paged import PagedCache
from labkit.kernels.layout import Layout
from labkit.models import LM


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
    """

    def __init__(self, lm: LM, cache: PagedCache, rows: int) -> None:
        self.lm = lm
        self.cache = cache
        self.overlaps = lm.device.type == "cuda"
        self._sampler = BatchSampler(rows, lm.config.vocab_size, lm.device)
        self._last = torch.zeros(rows, dtype=torch.long, device=lm.device)  # each slot's newest token
        self._staging = Staging(lm.device)
        self._lives: dict[int, tuple[int, int]] = {}
        install(lm.model)

    def close(self) -> None:
        """Give the model its own attention back, and the memory of keys and values to the device; once only."""
        remove(self.lm.model)
        self.cache.close()

    @torch.inference_mode()
    def launch(self, step: Step) -> ModelFlight:
        """Run a step. On a GPU it is under way when this returns."""
        for work in step.works:
            self._seat(work.row)
        self.cache.run_copies()
        slots = [work.row.slot for work in step.works for _ in range(work.wanted)]
        pack, index, seats = self._pack(step, slots)
        logits = forward(self.lm, pack)
        sampled = self._sampler.sample(logits, slots, index, check=True)
        if slots:
            self._sampler.observe(slots, sampled.tokens)
            self._last.index_copy_(0, seats, sampled.tokens)
        return self._to_host(step, sampled)

    def _seat(self, row: Row) -> None:
        """Tell the sampler about a row that has just taken its slot."""
        life = (row.number, row.admissions)
        if self._lives.get(row.slot) != life:
            self._lives[row.slot] = life
            sampling, prompt = row.request.sampling, row.tokens[: row.prompt]
            self._sampler.set(row.slot, sampling, row.seed, prompt, row.tokens[row.prompt :])

    def _pack(self, step: Step, drawing: Sequence[int]) -> tuple[Pack, torch.Tensor, torch.Tensor]:
        """The step's input; and, for each draw, how many came before in its row, and its row's slot (`drawing`)."""
        works = step.works
        ids = [token for work in works for token in work.ids()]
        unknown = [place for place, token in enumerate(ids) if token == UNKNOWN]
        owners = [work.row.slot for work in works if work.stop > len(work.row.tokens) and not work.guesses]
        table = _table(self.cache, works)
        lengths = [work.stop for work in works]
        counters = [work.first + i for work in works for i in range(work.wanted)]
        positions = [p for work in works for p in range(work.start, work.stop)]
        slots = [slot for work in works for slot in self._slots(work)]
        sent = self._staging.send(
            ids, positions, slots, _wanted(works), counters, lengths, unknown, owners, drawing, table
        )
        if unknown:
            sent[0].index_copy_(0, sent[6], self._last.index_select(0, sent[7]))
        layout = Layout(
            sum(work.tokens == 1 for work in works),
            tuple(work.tokens for work in works),
            tuple(lengths),
            sent[2],
            sent[9].view(table.shape).int(),
            sent[5].int(),
        )
        pack = Pack(sent[0][None], sent[1][None], sent[3], View(layout, self.cache.layers))
        return pack, sent[4], sent[8]

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


def _table(cache: PagedCache, works: Sequence[Work]) -> np.ndarray:
    """Block ids [rows, most blocks], padded with the reserved block."""
    blocks = [cache.tables.rows[work.row.number].blocks for work in works]
    table = np.zeros((len(blocks), max(map(len, blocks))), dtype=np.int64)
    for row, mine in enumerate(blocks):
        table[row, : len(mine)] = mine
    return table


def _wanted(works: Sequence[Work]) -> list[int]:
    """Places in the pack whose logits are wanted."""
    places: list[int] = []
    end = 0
    for work in works:
        end += work.tokens
        places += range(end - work.wanted, end)
    return places
