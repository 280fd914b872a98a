"""From a request to rows: checks that it can ever run, and gives its samples their numbers and seeds."""

from __future__ import annotations

from itertools import count
from typing import Any

from labkit.batch import checks
from labkit.batch.request import Request, Sample, Ticket
from labkit.batch.row import Row
from labkit.batch.scheduler import Scheduler
from labkit.batch.text import TextStream
from labkit.errors import LabkitError
from labkit.kernels.draws import sample_seed


class Intake:
    """Accepts requests for one engine; the arguments are the engine's."""

    def __init__(
        self, scheduler: Scheduler, tokenizer: Any, positions: int | None, vocab: int | None, seed: int
    ) -> None:
        self._scheduler = scheduler
        self._tokenizer = tokenizer
        self._positions = positions
        self._vocab = vocab
        self._seed = seed
        self._tickets = count()
        self._rows = count()

    def accept(self, request: Request, arrival: float) -> tuple[Ticket, list[Row]]:
        """A ticket and its rows, not queued yet.

        Raises:
            LabkitError: it can never run, with the reason.
        """
        checks.kind("What was submitted", request, Request, "Give a Request(prompt=…).")
        prompt = self._ids(request)
        self._check(request, len(prompt))
        self._check_vocabulary(request, prompt)
        number = next(self._tickets)
        ticket = Ticket(number, request, prompt, arrival, [Sample() for _ in range(request.samples)])
        chosen = request.sampling.seed
        first = sample_seed(self._seed, number + 1) if chosen is None else chosen
        rows: list[Row] = []
        for index in range(request.samples):
            name = next(self._rows)
            rows.append(
                Row(
                    number=name,
                    ticket=ticket,
                    sample_index=index,
                    order=self._scheduler.place(arrival, request.priority, name),
                    tokens=list(prompt),
                    seed=sample_seed(first, index),
                    text=TextStream(self._tokenizer, request.stop),
                    leader=rows[0] if rows else None,
                )
            )
        return ticket, rows

    def _ids(self, request: Request) -> tuple[int, ...]:
        if self._tokenizer is None and (isinstance(request.prompt, str) or request.stop):
            raise LabkitError(
                "This engine has no tokenizer, and the request holds text.", "Give token ids and stop_ids."
            )
        if not isinstance(request.prompt, str):
            return tuple(request.prompt)
        try:
            return tuple(self._tokenizer(request.prompt, verbose=False)["input_ids"])
        except (TypeError, ValueError) as error:  # a lone half of a surrogate pair, which JSON can carry
            raise LabkitError(f"The prompt cannot be encoded: {error}.", "Give valid Unicode text.") from None

    def _check_vocabulary(self, request: Request, prompt: tuple[int, ...]) -> None:
        if self._vocab is None:
            return
        if not 0 <= min(prompt) <= max(prompt) < self._vocab:
            raise LabkitError(
                f"The prompt has ids from {min(prompt)} to {max(prompt)}, the model tokens 0 to {self._vocab - 1}.",
                "Encode it with the model's own tokenizer.",
            )
        if (request.sampling.logprobs or 0) > self._vocab:
            raise LabkitError(
                f"{request.sampling.logprobs} alternatives of {self._vocab} tokens were asked for.",
                "Ask for fewer logprobs.",
            )

    def _check(self, request: Request, prompt: int) -> None:
        if prompt == 0:
            raise LabkitError("The prompt has no tokens.", "Give some text.")
        if self._positions is not None and prompt + request.max_tokens > self._positions:
            raise LabkitError(
                f"{prompt} prompt tokens and {request.max_tokens} new ones exceed the {self._positions} positions.",
                "Shorten the prompt"
                + (
                    f", or ask for {most} new tokens at most."
                    if (most := self._positions - prompt) > 0
                    else "."
                ),
            )
        tables = self._scheduler.tables
        room = tables.pool.total * tables.block_size
        if prompt > room:
            raise LabkitError(
                f"The prompt has {prompt} tokens, and the whole KV pool holds {room}.",
                "Shorten it, or make the pool larger.",
            )
