"""Perplexity and bits per byte over sliding windows, with exact accounting of bytes.

A text is tokenized once and started with the tokenizer's start token, if it has one (else the first token
cannot be predicted and neither it nor its bytes count). Windows then slide over the tokens: each reads up to
`context` tokens and scores its last `stride`, so every token is scored once, and all but those of the first
window have at least `context - stride` tokens before them. Both settings move the result: state them with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

import torch
from transformers import DynamicCache

from labkit.errors import LabkitError
from labkit.models import LM
from labkit.models.lm import check_positions

CONTEXT = 1024
STRIDE = 512
CHUNK = 1024
"""Tokens of one forward; longer windows go through in chunks with a KV cache, so logits stay small."""


@dataclass(frozen=True)
class Window:
    """Tokens [start, end) are read; the predictions of tokens [first, end] that follow are scored.

    The prediction of token j comes from reading tokens up to j - 1.
    """

    start: int
    first: int
    end: int


def windows(tokens: int, context: int, stride: int) -> list[Window]:
    """Cover `tokens` tokens so that each but the very first is scored exactly once.

    Raises:
        LabkitError: unless 1 ≤ stride ≤ context and there are two tokens.
    """
    if not 1 <= stride <= context:
        raise LabkitError(
            f"A stride of {stride} does not fit a context of {context}.",
            "Give 1 ≤ stride ≤ context, in tokens.",
        )
    if tokens < 2:
        raise LabkitError("The text is too short to score.", "Give a text of at least two tokens.")
    found: list[Window] = []
    first = 1
    while first < tokens:
        end = min(first + stride - 1 if found else context, tokens - 1)
        found.append(Window(max(end - context, 0), first, end))
        first = end + 1
    return found


@dataclass(frozen=True)
class Score:
    """What a model made of every token of a text. All tensors are [n], one entry a scored token.

    Args:
        nats: minus the log probability of the token [nats].
        bytes: UTF-8 bytes of the text that the token stands for.
        seen: tokens that the model had read before it.
        window: index of its window, the unit that a bootstrap draws.
        context, stride: of the windows [tokens].
    """

    nats: torch.Tensor
    bytes: torch.Tensor
    seen: torch.Tensor
    window: torch.Tensor
    context: int
    stride: int

    @property
    def perplexity(self) -> float:
        """exp(mean nats per token): the number of equally likely tokens that would be as surprising."""
        return math.exp(self.nats.mean().item())

    @property
    def bits_per_byte(self) -> float:
        """sum of nats / ln 2 / bytes: comparable across tokenizers."""
        return self.nats.sum().item() / math.log(2) / self.bytes.sum().item()

    def per_window(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Bits per byte and bytes of each window, both [windows]: the pairs that a bootstrap resamples."""
        count = int(self.window.max()) + 1
        total = torch.zeros(count, dtype=torch.float64).index_add_(0, self.window, self.nats)
        size = torch.zeros(count, dtype=torch.float64).index_add_(0, self.window, self.bytes.double())
        return total / math.log(2) / size.clamp_min(1), size

    def where(self, mask: torch.Tensor) -> Score:
        """The score of the tokens that a mask [n] selects."""
        kept = [each[mask] for each in (self.nats, self.bytes, self.seen, self.window)]
        return Score(kept[0], kept[1], kept[2], kept[3], self.context, self.stride)


@torch.no_grad()
def score(lm: LM, text: str, *, context: int = CONTEXT, stride: int = STRIDE) -> Score:
    """Score every token of a text.

    Raises:
        LabkitError: the text is too short, the windows do not fit the model, or the model gives NaN.
    """
    ids, sizes = tokenize(lm, text)
    plan = windows(len(ids), context, stride)
    check_positions(lm, context, f"a context of {context}")
    nats = []
    for window in plan:
        target = ids[window.first : window.end + 1]
        rows = window_logits(lm, ids, window)
        losses = torch.cat([_losses(logits, part) for logits, part in _paired(rows, target)])
        nats.append(losses)
    taken = torch.cat(nats)
    if taken.isnan().any():
        raise LabkitError(
            f"{lm.name} gives NaN on this text.", "A change has broken the model; undo the last one."
        )
    lengths = torch.tensor([window.end + 1 - window.first for window in plan])
    seen = torch.cat([torch.arange(w.first - w.start, w.end + 1 - w.start) for w in plan])
    index = torch.repeat_interleave(torch.arange(len(plan)), lengths)
    return Score(taken, sizes[1:], seen, index, context, stride)


def perplexity(lm: LM, text: str, *, context: int = CONTEXT, stride: int = STRIDE) -> float:
    """exp(mean negative log-likelihood per token) of a text; see `score` for windows and errors."""
    return score(lm, text, context=context, stride=stride).perplexity


def bits_per_byte(lm: LM, text: str, *, context: int = CONTEXT, stride: int = STRIDE) -> float:
    """Bits per UTF-8 byte of a text; see `score` for windows and errors."""
    return score(lm, text, context=context, stride=stride).bits_per_byte


def tokenize(lm: LM, text: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids [n] on the CPU and the bytes each stands for [n]; the first entry is never scored.

    Bytes come from the tokenizer's offsets: a token ends where its last character ends, and begins where
    the token before it ended. So whatever a tokenizer trims, drops, normalises or splits within a
    character, the bytes of all tokens add up to those of the text.

    Raises:
        LabkitError: a tokenizer that gives no offsets.
    """
    if not lm.tokenizer.is_fast:
        raise LabkitError(
            f"The tokenizer of {lm.name} gives no offsets, so bytes cannot be counted.",
            "Use a checkpoint with a tokenizer.json.",
        )
    encoded = lm.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    ids, ends = encoded["input_ids"], [end for _, end in encoded["offset_mapping"]]
    if ids:
        ends[-1] = len(text)
    bytes_before = [0, *accumulate(len(character.encode()) for character in text)]
    reached = [0, *(bytes_before[end] for end in accumulate(ends, max))]
    sizes = [later - earlier for earlier, later in zip(reached, reached[1:], strict=False)]
    start = lm.tokenizer.bos_token_id
    if start is not None:
        ids, sizes = [start, *ids], [0, *sizes]
    return torch.tensor(ids, dtype=torch.long), torch.tensor(sizes, dtype=torch.long)


def window_logits(lm: LM, ids: torch.Tensor, window: Window) -> Iterator[torch.Tensor]:
    """Logits [m, vocabulary] in fp32 for the scored tokens of a window, a chunk at a time and in order."""
    read = ids[None, window.start : window.end].to(lm.device)
    skip = window.first - window.start - 1
    whole = read.shape[1] <= CHUNK
    cache = None if whole else DynamicCache(config=lm.model.config)
    for begin in range(0, read.shape[1], CHUNK):
        part = read[:, begin : begin + CHUNK]
        unscored = min(max(skip - begin, 0), part.shape[1])
        keep = torch.arange(unscored, part.shape[1], device=lm.device)
        output = lm.model(part, past_key_values=cache, use_cache=not whole, logits_to_keep=keep)
        if len(keep):
            yield output.logits[0].float()


def _paired(
    rows: Iterator[torch.Tensor], target: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    done = 0
    for logits in rows:
        yield logits, target[done : done + len(logits)].to(logits.device)
        done += len(logits)


def _losses(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(logits, target, reduction="none").double().cpu()
