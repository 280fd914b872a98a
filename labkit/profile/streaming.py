"""Text from tokens as they come: never half of a character, and the pieces add up to the whole."""

from __future__ import annotations

from typing import Any

_HALF = "\ufffd"  # what a decoder prints for bytes that are no character (yet)


class StreamDecoder:
    """Incremental detokenisation of one stream.

    A byte-level token can end in the middle of a character, whose text is known only with a later token.
    Such a tail is held back. Some tokenizers also write a token differently at the start of a text (no
    leading space), so each piece is the difference of two decodes that start from the same earlier token:
    the window method of text-generation-inference and vLLM.

    The pieces concatenate to `tokenizer.decode(ids)` as long as the bytes are valid UTF-8 or the tokenizer
    is byte-level.
    """

    def __init__(self, tokenizer: Any, *, skip_special_tokens: bool = True) -> None:
        self.tokenizer = tokenizer
        self.skip_special_tokens = skip_special_tokens
        self.ids: list[int] = []
        self._start = 0  # where both decodes begin
        self._shown = 0  # tokens whose text has been given out

    def push(self, token: int) -> str:
        """Add a token; returns the text that is now certain, perhaps none."""
        self.ids.append(int(token))
        before, now = self._text(self._start, self._shown), self._text(self._start, len(self.ids))
        if len(now) <= len(before) or now.endswith(_HALF):
            return ""
        self._start, self._shown = self._shown, len(self.ids)
        return now[len(before) :]

    def flush(self) -> str:
        """The tail that was held back, once no token will come any more."""
        before, now = self._text(self._start, self._shown), self._text(self._start, len(self.ids))
        self._start = self._shown = len(self.ids)
        return now[len(before) :]

    def _text(self, start: int, stop: int) -> str:
        return str(
            self.tokenizer.decode(
                self.ids[start:stop],
                skip_special_tokens=self.skip_special_tokens,
                clean_up_tokenization_spaces=False,
            )
        )


def silent_tokens(tokenizer: Any, ids: list[int]) -> int:
    """Leading tokens after which nothing can be shown yet; 0 when none of them ever shows anything."""
    stream = StreamDecoder(tokenizer)
    return next((index for index, token in enumerate(ids) if stream.push(token)), 0)
