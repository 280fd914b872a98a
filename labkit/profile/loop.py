"""The plain decode loop: one prompt, greedy, with a cache of its own and a stamp for every token.

This is the slow, obvious loop that the rest of the course improves on. Each token's number is fetched to
the host (`int(token)`), as streaming needs it, and on a GPU that waits for everything queued before it.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from labkit.errors import LabkitError
from labkit.models.lm import check_positions
from labkit.timing import Clock, Latency, counted

if TYPE_CHECKING:
    from labkit.models import LM

Prompt = str | list[int] | torch.Tensor
Forward = Callable[[torch.Tensor, Any], torch.Tensor]  # ids [1, n] and a cache → logits [1, vocab]


@dataclass(frozen=True)
class Generation:
    """Tokens that a loop produced and when each reached the host."""

    ids: tuple[int, ...]
    prompt_tokens: int
    latency: Latency


def prompt_ids(lm: LM, prompt: Prompt) -> torch.Tensor:
    """Token ids [1, n] on the model's device, from text or from ids.

    Raises:
        LabkitError: an empty prompt.
    """
    if isinstance(prompt, str):
        ids = lm.encode(prompt)
    else:
        ids = torch.as_tensor(prompt, dtype=torch.long).reshape(1, -1).to(lm.device)
    if ids.shape[1] == 0:
        raise LabkitError("The prompt has no tokens.", "Give some text.")
    return ids


def check_length(lm: LM, prompt_tokens: int, new_tokens: int) -> None:
    """Refuse what does not fit into the model's positions.

    Raises:
        LabkitError: too long, or nothing to generate.
    """
    if new_tokens < 1:
        raise LabkitError(f"{new_tokens} new tokens were asked for.", "Ask for at least one.")
    what = f"{counted(prompt_tokens, 'prompt token')} and {new_tokens} new"
    check_positions(lm, prompt_tokens + new_tokens, what)


def plain_forward(lm: LM) -> Forward:
    """One call of the model that gives the last position's logits only, [1, vocab]."""
    # a prompt of 4096 tokens would otherwise pay for 4095 rows of logits that nobody reads
    last_only: dict[str, Any] = {}
    if "logits_to_keep" in inspect.signature(type(lm.model).forward).parameters:
        last_only["logits_to_keep"] = 1

    def forward(ids: torch.Tensor, cache: Any) -> torch.Tensor:
        output = lm.model(input_ids=ids, past_key_values=cache, use_cache=True, **last_only)
        logits: torch.Tensor = output.logits[:, -1]
        return logits

    return forward


def dynamic_cache(lm: LM) -> Any:
    """transformers' growing KV cache, with sliding layers where the configuration has them."""
    from transformers import DynamicCache

    return DynamicCache(config=lm.config)


@torch.inference_mode()
def generate(lm: LM, prompt: Prompt, new_tokens: int, *, clock: Clock = time.perf_counter) -> Generation:
    """Decode exactly `new_tokens` tokens greedily (the end-of-text token does not stop it).

    The request counts as sent before the prompt is tokenised; a prompt given as ids skips that part.

    Raises:
        LabkitError: an empty prompt, or more tokens than the model has positions.
    """
    forward = plain_forward(lm)
    if lm.device.type == "cuda":
        torch.cuda.synchronize(lm.device)  # work queued earlier is not this request's
    sent = clock()
    ids = prompt_ids(lm, prompt)
    check_length(lm, ids.shape[1], new_tokens)
    cache = dynamic_cache(lm)
    tokens: list[int] = []
    stamps: list[float] = []
    step = ids
    while len(tokens) < new_tokens:
        token = forward(step, cache).argmax(dim=-1)
        tokens.append(int(token))
        stamps.append(clock())
        step = token[:, None]
    return Generation(tuple(tokens), ids.shape[1], Latency(sent, tuple(stamps)))


def decode_steps(lm: LM, prompt: Prompt, steps: int) -> Callable[[], list[int]]:
    """Prefill now, and return a function that decodes `steps` more tokens each time it is called.

    For looking at decoding alone. The context grows by `steps` with every call.

    Raises:
        LabkitError: an empty prompt, or more tokens than the model has positions.
    """
    forward, cache, ids = plain_forward(lm), dynamic_cache(lm), prompt_ids(lm, prompt)
    check_length(lm, ids.shape[1], steps)
    with torch.inference_mode():
        token = forward(ids, cache).argmax(dim=-1)

    @torch.inference_mode()
    def decode() -> list[int]:
        nonlocal token
        tokens = []
        for _ in range(steps):
            token = forward(token[:, None], cache).argmax(dim=-1)
            tokens.append(int(token))
        return tokens

    return decode
