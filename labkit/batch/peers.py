"""What our engine is compared with: transformers' generate, alone and padded, and its continuous batching."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from labkit.batch.request import Request
from labkit.models import LM
from labkit.timing import synchronize


def _ids(request: Request) -> list[int]:
    return [int(token) for token in request.prompt]


@torch.inference_mode()
def one_by_one(lm: LM, requests: Sequence[Request]) -> float:
    """Seconds that transformers' `generate` takes for the requests, one after the other."""
    synchronize(lm.device)
    start = time.perf_counter()
    for request in requests:
        prompt = torch.tensor([_ids(request)], device=lm.device)
        _generate(lm, prompt, torch.ones_like(prompt), request.max_tokens)
    synchronize(lm.device)
    return time.perf_counter() - start


@torch.inference_mode()
def padded(lm: LM, requests: Sequence[Request]) -> float:
    """Seconds of one `generate` over all requests, left-padded, as long as the longest output."""
    longest = max(len(request.prompt) for request in requests)
    prompt = torch.zeros(len(requests), longest, dtype=torch.long, device=lm.device)
    mask = torch.zeros_like(prompt)
    for row, request in enumerate(requests):
        prompt[row, longest - len(request.prompt) :] = torch.tensor(_ids(request))
        mask[row, longest - len(request.prompt) :] = 1
    synchronize(lm.device)
    start = time.perf_counter()
    _generate(lm, prompt, mask, max(request.max_tokens for request in requests))
    synchronize(lm.device)
    return time.perf_counter() - start


def _generate(lm: LM, prompt: torch.Tensor, mask: torch.Tensor, new: int) -> None:
    model: Any = lm.model
    model.generate(
        prompt, attention_mask=mask, max_new_tokens=new, min_new_tokens=new, do_sample=False, pad_token_id=0
    )


def transformers_continuous(
    lm: LM, requests: Sequence[Request], **settings: Any
) -> tuple[float, list[list[int]]]:
    """transformers' own continuous batching on the same weights.

    Args:
        settings: of its ContinuousBatchingConfig, such as use_cuda_graph.

    Returns:
        Seconds from the first submission to the last token, and every request's tokens.
    """
    from transformers import ContinuousBatchingConfig, GenerationConfig

    model: Any = lm.model
    chosen = GenerationConfig(
        max_new_tokens=max(request.max_tokens for request in requests),
        do_sample=False,
        eos_token_id=-1,
        pad_token_id=0,
    )
    before = model.config._attn_implementation
    try:
        with model.continuous_batching_context_manager(
            generation_config=chosen, continuous_batching_config=ContinuousBatchingConfig(**settings)
        ) as manager:
            _collect(
                manager, [Request(prompt=[1, 2, 3], max_tokens=4)]
            )  # buffers, and graphs if it takes any
            synchronize(lm.device)
            start = time.perf_counter()
            outputs = _collect(manager, requests)
            return time.perf_counter() - start, outputs
    finally:
        model.set_attn_implementation(before)


def _collect(manager: Any, requests: Sequence[Request]) -> list[list[int]]:
    names = [manager.add_request(_ids(request), max_new_tokens=request.max_tokens) for request in requests]
    found: dict[str, list[int]] = {}
    while len(found) < len(names):
        output = manager.get_result(timeout=120)
        if output is None:
            raise RuntimeError("transformers' continuous batching stopped answering")
        if output.is_finished():
            found[output.request_id] = list(output.generated_tokens)
    return [found[name] for name in names]


class Stamps:
    """A streamer for `generate`: when each token had reached the host [s]."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._prompt = True

    def put(self, tokens: torch.Tensor) -> None:
        """Called with the prompt first, then with every token."""
        tokens.cpu()  # waits for it, as whoever shows it to a user must
        if not self._prompt:
            self.seconds.append(time.perf_counter())
        self._prompt = False

    def end(self) -> None:
        """Nothing is left to do."""


@torch.inference_mode()
def generate_pace(
    lm: LM, prompt: Sequence[int], new: int, *, static: bool, warmup: int, repeats: int
) -> tuple[list[float], bool]:
    """Time per output token of transformers' `generate`, sampling at temperature 0.8, one request at a time.

    Args:
        static: a static cache, with which `generate` decodes through torch.compile on a GPU.
        warmup: unrecorded runs first; the compilation falls into them.

    Returns:
        (last stamp − first) ÷ (n − 1) of every run [s], and whether it was compiled.
    """
    model: Any = lm.model
    ids = torch.tensor([list(prompt)], device=lm.device)
    settings: dict[str, Any] = {"cache_implementation": "static"} if static else {}
    paces = []
    try:
        for number in range(warmup + repeats):
            stamps = Stamps()
            model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, min_new_tokens=new, do_sample=True,
                temperature=0.8, top_k=0, pad_token_id=0, streamer=stamps, **settings,
            )  # fmt: skip
            if number >= warmup:
                paces.append((stamps.seconds[-1] - stamps.seconds[0]) / (len(stamps.seconds) - 1))
        return paces, hasattr(model, "_compiled_call")
    finally:
        for left in ("_compiled_call", "_last_compile_config", "_cache"):
            vars(model).pop(left, None)
        torch.compiler.reset()
