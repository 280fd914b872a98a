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
        before = len(sample.tokens)
        for index, token in enumerate(tokens):
            sample.tokens.append(token)
            sample.stamps.append(now)
            if drawn.logprobs is not None:
                sample.logprobs.append(drawn.logprobs[index])
            if drawn.top is not None:
                sample.top.append(drawn.top[index])
            reason = self._ends(row, token)
            if reason is not Reason.EOS and token not in row.request.stop_ids:
                shown += row.text.push(token)
            if row.text.stopped:
                reason = Reason.STOP
            if reason is not None:
                break
        sample.text += shown
        return Event(row.ticket, row.sample_index, tuple(sample.tokens[before:]), shown), reason

    def _ends(self, row: Row, token: int) -> Reason | None:
        request = row.request
        if token in request.stop_ids:
            return Reason.STOP
        if token in self._eos and not request.ignore_eos:
            return Reason.EOS
        return Reason.LENGTH if len(row.sample.tokens) >= request.max_tokens else None

    def finish(self, row: Row, reason: Reason, error: str) -> Event:
        """Close a sample: the text that was held back, and why it ended."""
        rest = row.text.finish()
        row.sample.text += rest
        if row.text.stopped and reason is Reason.LENGTH:
            reason = Reason.STOP  # the last characters completed a stop string
        row.sample.reason, row.sample.error = reason, error
        return Event(row.ticket, row.sample_index, (), rest, reason)
