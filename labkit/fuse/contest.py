"""Functions that compute the same, timed in one alternating run on inputs that the cache does not hold.

A kernel of a few microseconds is over before Python has launched the next, so on a GPU each contender is captured
in a CUDA graph that walks through copies of the inputs: the time is the device's. Copies larger than the cache
together come from memory each time, as a model's weights do. Outputs are kept apart too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.timing import compare, synchronize

Call = Callable[..., Any]
COLD = 4
"""Caches that the copies of the inputs fill together."""


def copies(each: int, cache: int, most: int = 64) -> tuple[int, bool]:
    """How many copies of inputs of `each` bytes are walked through, and whether they exceed the cache twice."""
    count = max(2, min(most, math.ceil(COLD * cache / max(each, 1))))
    return count, count * each >= 2 * cache


@torch.inference_mode()
def contest(
    calls: dict[str, Call],
    inputs: Sequence[tuple[Any, ...]],
    device: torch.device,
    *,
    baseline: str,
    repeats: int,
    calls_each: int = 0,
) -> dict[str, dict[str, Any]]:
    """Time every call on all inputs, in turns.

    Args:
        calls: name → function of one of the inputs, returning a tensor or a tuple of some.
        baseline: whose first output the others' are compared with.
        calls_each: how often a timed run calls at least, going through the inputs again and again, so that starting
            the run does not count.

    Returns:
        name → {"seconds" of one call, "runs" [s] of "calls" calls each, "difference" to the baseline: the largest
        one of numbers, ÷ the baseline's largest number}, or {"unavailable": why}: it failed, or gave NaN or infinity.
    """
    found: dict[str, dict[str, Any]] = {}
    walks: dict[str, Callable[[], object]] = {}
    expected = None
    inputs = list(inputs) * math.ceil(max(calls_each, 1) / len(inputs))
    for name in sorted(calls, key=lambda each: each != baseline):
        try:
            out = _first(calls[name](*inputs[0])).double()
            wanted = out if expected is None else expected
            gap = float((out - wanted).abs().max() / wanted.abs().max().clamp(min=1e-9))
            if not math.isfinite(
                gap
            ):  # its time would be no result, and its difference none that can be recorded
                raise ValueError("it gives NaN or infinity")
            walks[name] = _walk(calls[name], inputs, device)
            found[name], expected = {"difference": gap}, wanted
        except Exception as error:  # what does not run here is a finding; the others go on
            found[name] = {"unavailable": reason(error)}
    if walks:
        for name, timed in compare(walks, device=device, warmup=2, repeats=repeats).items():
            found[name] |= {
                "seconds": timed.median / len(inputs),
                "calls": len(inputs),
                "runs": timed.seconds,
            }
    return {name: found[name] for name in calls}


def reason(error: BaseException) -> str:
    """An error in one line."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:200]


def _first(out: Any) -> Tensor:
    found: Tensor = out if isinstance(out, Tensor) else out[0]
    return found


def _walk(call: Call, inputs: Sequence[tuple[Any, ...]], device: torch.device) -> Callable[[], object]:
    """One call for all inputs: a graph's replay on a GPU."""

    def walk() -> list[Any]:
        return [call(*each) for each in inputs]

    if device.type != "cuda":
        return walk
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for each in inputs[:2]:
            call(*each)
    torch.cuda.current_stream(device).wait_stream(side)
    synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        held = walk()  # until the end of the capture, so that no output takes another's place
    del held
    return graph.replay
