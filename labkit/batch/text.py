"""Text of a growing sample: whole characters only, and nothing of a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from labkit.profile import StreamDecoder


class TextStream:
    """Turns tokens into text that may be shown, and notices stop strings, also across tokens.

    Text that could still become a stop string is held back until that is decided.

    Args:
        tokenizer: decodes tokens; None gives no text and finds no stop string.
        stop: strings that end the text; the earliest one in the text wins.
    """

    def __init__(self, tokenizer: Any, stop: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self.restart()

    def restart(self) -> None:
        """Forget all tokens."""
        self._decoder = StreamDecoder(self._tokenizer) if self._tokenizer is not None else None
        self._held = ""
        self.stopped = False

    def push(self, token: int) -> str:
        """Add a token; returns the text that is certain now. `stopped` tells whether the text has ended."""
        if self._decoder is None or self.stopped:
            return ""
        return self._certain(self._decoder.push(token))

    def finish(self) -> str:
        """The rest of the text, when no token follows."""
        if self._decoder is None or self.stopped:
            return ""
        text = self._certain(self._decoder.flush())
        if not self.stopped:
            text, self._held = text + self._held, ""
        return text

    def _certain(self, fresh: str) -> str:
        text = self._held + fresh
        found = [place for place in (text.find(stop) for stop in self._stop) if place >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        keep = max((_overlap(text, stop) for stop in self._stop), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
