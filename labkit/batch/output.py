"""From drawn tokens to what a caller sees, and to the reason why a sample ends."""

from __future__ import annotations

from collections.abc import Sequence

from labkit.batch.request import Event, Reason
from labkit.batch.row import Row
from labkit.batch.runner import Drawn


class Output:
    """Fills samples.

    Args:
        eos: tokens that end a text unless a request ignores them.
    """

    def __init__(self, eos: Sequence[int]) -> None:
        self._eos = frozenset(eos)

    def take(self, row: Row, tokens: Sequence[int], drawn: Drawn, now: float) -> tuple[Event, Reason | None]:
        """Add a row's new tokens to its sample, up to the one that ends it.

        Returns:
            The event to hand out, and the reason if the sample ends here.
        """
        sample, shown, reason = row.sample, "", None
        count = 0
        for token in tokens:
            count += 1
            reason = self._ends(row, token, len(sample.tokens) + count)
            shown += self._shown(row, token, reason)
            if row.text.stopped:
                reason = Reason.STOP
            if reason is not None:
                break
        if drawn.logprobs is not None:
            sample.logprobs += drawn.logprobs[:count]
        if drawn.top is not None:
            sample.top += drawn.top[:count]
        sample.text += shown
        sample.stamps += [now] * count
        sample.tokens += tokens[:count]
        return Event(row.ticket, row.sample_index, tuple(tokens[:count]), shown), reason

    def _ends(self, row: Row, token: int, length: int) -> Reason | None:
        request = row.request
        if token in request.stop_ids:
            return Reason.STOP
        if token in self._eos and not request.ignore_eos:
            return Reason.EOS
        return Reason.LENGTH if length >= request.max_tokens else None

    def restore(self, row: Row) -> Reason | None:
        """Bring a sample that an interrupt may have left half-written into agreement with its tokens.

        Returns:
            The reason if its last token was the one that ends it.
        """
        sample = row.sample
        for record in (sample.stamps, sample.logprobs, sample.top):
            del record[len(sample.tokens) :]
        row.tokens = [*row.ticket.prompt, *sample.tokens]
        row.text.restart()
        reason, shown = None, ""
        for length, token in enumerate(sample.tokens, 1):
            reason = self._ends(row, token, length)
            shown += self._shown(row, token, reason)
        sample.text = shown
        return Reason.STOP if row.text.stopped else reason

    def _shown(self, row: Row, token: int, reason: Reason | None) -> str:
        """What a token adds to the text; those that end it by themselves are no part of it."""
        hidden = reason is Reason.EOS or token in row.request.stop_ids
        return "" if hidden else row.text.push(token)

    def finish(self, row: Row, reason: Reason, error: str) -> Event:
        """Close a sample: the text that was held back, and why it ended."""
        rest = row.text.finish()
        row.sample.text += rest
        if row.text.stopped and reason is Reason.LENGTH:
            reason = Reason.STOP  # the last characters completed a stop string
        row.sample.reason, row.sample.error = reason, error
        return Event(row.ticket, row.sample_index, (), rest, reason)
