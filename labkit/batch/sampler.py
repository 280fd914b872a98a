"""Choosing the next token of every row of a batch, on the device, in one call.

`BatchSampler` keeps what each request asks for on the device, a row a slot, beside the tokens that penalties
need to know, and picks all rows' tokens without waiting for the device: what can be known on the host (which
rows are greedy, which have filters) is kept there, and what must cross goes in one copy from pinned memory.
The mathematics of a draw, and why it does not depend on the batch, is in `draws`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from labkit.batch import checks
from labkit.batch.sampling import SEEDS, Sampled, Sampling, Top
from labkit.batch.staging import Staging
from labkit.errors import LabkitError
from labkit.kernels import draws
from labkit.kernels.device import available

PIECE = 1 << 24
"""Logits drawn from at a time: float64 copies of a large batch times a large vocabulary would fill a GPU."""


class BatchSampler:
    """The sampling state of `slots` rows on a device, and the choice of their next tokens.

    Memory: 64 B a slot; from the first request with a penalty on, also 5 · slots · vocab B of history.

    Args:
        slots: rows that may exist at the same time.
        vocab: logits a row.
        device: where the logits are.
    """

    def __init__(self, slots: int, vocab: int, device: torch.device | str = "cpu") -> None:
        if slots < 1 or vocab < 1:
            raise LabkitError(f"No sampler has {slots} slots and {vocab} tokens.", "Give at least one each.")
        self.vocab = vocab
        self.device = torch.device(device)
        self._staging = Staging(self.device)
        self._sampling: list[Sampling | None] = [
            None
        ] * slots  # the host's copy, which decides what to launch
        # eight 64-bit words a slot: seven float64 numbers and the seed, so that one copy fills a slot
        self._table = torch.zeros(slots, draws.WORDS, dtype=torch.int64, device=self.device)
        self._prompt: Tensor | None = None  # bool [slots, vocab]: the prompt has the token
        self._output: Tensor | None = None  # int32 [slots, vocab]: how often it was generated

    def set(
        self, slot: int, sampling: Sampling, seed: int, prompt: Sequence[int], output: Sequence[int] = ()
    ) -> None:
        """Give a slot to a request.

        Args:
            seed: of its draws; the engine's choice where sampling.seed is None.
            prompt: its prompt's ids, read only if a penalty is on.
            output: what it has generated already (a preempted request resumes).

        Raises:
            LabkitError: no such slot, a seed of more than 64 bits, ids outside the vocabulary, or more
                alternatives asked for than there are tokens.
        """
        self._check_set(slot, sampling, seed)
        if sampling.needs_history:
            self._remember(slot, prompt, output)
        numbers = (
            sampling.temperature, min(sampling.top_k or self.vocab, self.vocab), sampling.top_p, sampling.min_p,
            sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty,
        )  # fmt: skip
        words = np.append(np.array(numbers, dtype=np.float64).view(np.int64), draws.signed(seed))
        self._table[slot].copy_(self._staging.send(words)[0])
        self._sampling[slot] = sampling

    def clear(self, slot: int) -> None:
        """Take the slot back. (Its history stays until the next request that needs one.)"""
        self._check_slot(slot)
        self._sampling[slot] = None

    def observe(self, slots: Sequence[int], tokens: Tensor) -> None:
        """Count sampled tokens, for the penalties. A slot may occur several times.

        Args:
            slots: the rows, on the host.
            tokens: int64 [n] on the device.
        """
        rows = [row for row, slot in enumerate(slots) if self._of(slot).needs_history]
        if not rows or self._output is None:
            return
        where, place = self._staging.send(rows, [slots[row] * self.vocab for row in rows])
        place = place + tokens.index_select(0, where)
        self._output.view(-1).scatter_add_(0, place, torch.ones_like(place, dtype=torch.int32))

    @torch.no_grad()
    def sample(
        self,
        logits: Tensor,
        slots: Sequence[int],
        index: Tensor,
        *,
        check: bool = False,
        places: Tensor | None = None,
    ) -> Sampled:
        """The next token of every row. Rows without penalties and filters cost one kernel together on a GPU;
        elsewhere greedy ones cost one argmax.

        Args:
            logits: [n, vocab], any floating dtype. Left as they are.
            slots: the rows' slots, on the host.
            index: int64 [n] on the device, how many output tokens each row has had.
            check: also look for rows whose logits cannot be sampled from.
            places: `slots` as int64 [n] on the device, if they are there already.

        Raises:
            LabkitError: shapes that do not fit, or a slot that was not set.
        """
        if logits.shape != (len(slots), self.vocab) or index.shape != (len(slots),):
            raise LabkitError(
                f"Logits {list(logits.shape)} and index {list(index.shape)} do not fit {len(slots)} slots.",
                f"Give logits [{len(slots)}, {self.vocab}] and one index a row.",
            )
        wanted = [self._of(slot) for slot in slots]
        if slots and available(logits.device):
            places = self._staging.send(slots)[0] if places is None else places
            bad: Tensor | None
            tokens, bad = draws.draw(logits, self._table, places, index)
            rows = [
                row for row, each in enumerate(wanted) if each.filters or each.min_p or each.needs_history
            ]
        else:
            tokens = logits.argmax(dim=-1)
            # argmax takes a NaN for the largest, so the logit it found tells of the whole row
            bad = ~(logits.gather(-1, tokens[:, None])[:, 0] > -torch.inf) if check else None
            rows = [row for row, each in enumerate(wanted) if not each.greedy or each.needs_history]
        step = max(PIECE // self.vocab, 1)
        for piece in (rows[start : start + step] for start in range(0, len(rows), step)):
            self._draw(logits, slots, index, piece, tokens)
        return Sampled(tokens, *self._logprobs(logits, tokens, wanted), bad if check else None)

    def _draw(
        self, logits: Tensor, slots: Sequence[int], index: Tensor, rows: list[int], tokens: Tensor
    ) -> None:
        """Replace the tokens of these rows by those drawn, or by the largest after penalties."""
        wanted = [self._of(slots[row]) for row in rows]
        filtered = [place for place, each in enumerate(wanted) if each.filters]
        where, slot, narrow = self._staging.send(rows, [slots[row] for row in rows], filtered)
        words = self._table.index_select(0, slot)
        temperature, top_k, top_p, least, *penalties = words.view(torch.float64)[:, :7].split(1, dim=1)
        scores = logits.index_select(0, where).double()
        if (
            self._prompt is not None
            and self._output is not None
            and any(each.needs_history for each in wanted)
        ):
            seen, counts = self._prompt.index_select(0, slot), self._output.index_select(0, slot)
            scores = draws.penalised(scores, seen, counts, *penalties)
        scores = draws.relative(scores, temperature)
        if filtered:
            some = (each.index_select(0, narrow) for each in (scores, top_k.long(), top_p))
            scores.index_copy_(0, narrow, draws.top_k_top_p(*some))
        if any(each.min_p > 0 for each in wanted):
            scores = draws.min_p(scores, least)
        drawn = draws.race(scores, words[:, 7], index.index_select(0, where), temperature > 0)
        tokens.index_copy_(0, where, drawn)

    def _logprobs(
        self, logits: Tensor, tokens: Tensor, wanted: list[Sampling]
    ) -> tuple[Tensor | None, Top | None]:
        """Log-probabilities of the model's own distribution, computed for the rows that asked."""
        rows = [row for row, each in enumerate(wanted) if each.logprobs is not None]
        if not rows:
            return None, None
        most = max(each.logprobs or 0 for each in wanted)
        (where,) = self._staging.send(rows)
        values = draws.relative(logits.index_select(0, where).double()).log_softmax(dim=-1)
        chosen = torch.full(tokens.shape, torch.nan, device=self.device)
        found = values.gather(-1, tokens.index_select(0, where)[:, None])[:, 0]
        chosen.index_copy_(0, where, found.float())
        if not most:
            return chosen, None
        ordered, ids = values.sort(dim=-1, descending=True, stable=True)
        top = Top(tokens.new_zeros(len(wanted), most), chosen.new_full((len(wanted), most), torch.nan))
        top.ids.index_copy_(0, where, ids[:, :most])
        top.logprobs.index_copy_(0, where, ordered[:, :most].float())
        return chosen, top

    def _of(self, slot: int) -> Sampling:
        self._check_slot(slot)
        found = self._sampling[slot]
        if found is None:
            raise LabkitError(f"Slot {slot} holds no request.", "Call set(slot, …) before sampling from it.")
        return found

    def _check_slot(self, slot: int) -> None:
        if not 0 <= slot < len(self._sampling):
            raise LabkitError(f"There is no slot {slot}.", f"Slots go from 0 to {len(self._sampling) - 1}.")

    def _check_set(self, slot: int, sampling: Sampling, seed: int) -> None:
        self._check_slot(slot)
        if seed is None:
            raise LabkitError("A slot was set without a seed.", "Choose one where sampling.seed is None.")
        checks.count("A slot's seed", seed, *SEEDS)
        if (sampling.logprobs or 0) > self.vocab:
            raise LabkitError(
                f"{sampling.logprobs} alternatives of {self.vocab} tokens were asked for.",
                "Ask for fewer logprobs.",
            )

    def _remember(self, slot: int, prompt: Sequence[int], output: Sequence[int]) -> None:
        """Start a slot's history with what the request holds already."""
        for ids in (prompt, output):
            if ids and not 0 <= min(ids) <= max(ids) < self.vocab:
                raise LabkitError(
                    f"Ids from {min(ids)} to {max(ids)} do not fit a vocabulary of {self.vocab}.",
                    "Encode the prompt with the model's own tokenizer.",
                )
        if self._prompt is None or self._output is None:
            shape = len(self._sampling), self.vocab
            with torch.inference_mode(False):  # else nobody outside that mode could write to them later
                self._prompt = torch.zeros(shape, dtype=torch.bool, device=self.device)
                self._output = torch.zeros(shape, dtype=torch.int32, device=self.device)
        before, since = self._staging.send(prompt, output)
        self._prompt[slot].zero_().index_fill_(0, before, True)
        self._output[slot].zero_().scatter_add_(0, since, torch.ones_like(since, dtype=torch.int32))
