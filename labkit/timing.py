"""Clocks that tell the truth about an asynchronous device, and the terms of a token stream.

A GPU call returns before its work is done: a timing that does not wait measures the launch. What is timed
here is waited for on both sides, warmed up, repeated, and reported as a median with its spread. Times are
seconds throughout; functions that take plain numbers return plain numbers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from labkit.errors import LabkitError

if TYPE_CHECKING:
    import torch

Clock = Callable[[], float]


def synchronize(device: torch.device | str | None = None) -> None:
    """Wait until the device has finished everything it was given; on a CPU there is nothing to wait for.

    Args:
        device: a torch device or its name; None means the GPU if there is one.
    """
    kind = str(device or "cuda").partition(":")[0]
    if kind == "cpu":
        return
    import torch

    if kind == "cuda" and (device is not None or torch.cuda.is_available()):
        torch.cuda.synchronize(device)
    elif kind == "mps":
        torch.mps.synchronize()


def percentile(values: Iterable[float], q: float) -> float:
    """The value below which q percent (0 to 100) of the values lie, linear between neighbours.

    Raises:
        LabkitError: no values, a NaN among them, or q out of range.
    """
    ordered = sorted(values)
    if not ordered:
        raise LabkitError("A percentile of no values was asked for.", "Give at least one value.")
    if any(math.isnan(value) for value in ordered):
        raise LabkitError("A NaN is among the values of a percentile.", "Leave undefined values out first.")
    if not 0 <= q <= 100:
        raise LabkitError(f"Percentile {q} does not exist.", "Give a number from 0 to 100.")
    position = (len(ordered) - 1) * q / 100
    below = math.floor(position)
    low, high = ordered[below], ordered[min(below + 1, len(ordered) - 1)]
    between = low + (high - low) * (position - below)
    return min(max(low, between), high)  # rounding could leave the two neighbours


@dataclass(frozen=True)
class Measurement:
    """Repeated timings of one piece of work; `seconds` holds every repeat, in order."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle repeat [s]: one disturbed run does not move it."""
        return percentile(self.seconds, 50)

    @property
    def low(self) -> float:
        """The 10th percentile [s]."""
        return percentile(self.seconds, 10)

    @property
    def high(self) -> float:
        """The 90th percentile [s]."""
        return percentile(self.seconds, 90)

    @property
    def best(self) -> float:
        """The fastest repeat [s], which is what a ceiling is made of."""
        return min(self.seconds)

    def __str__(self) -> str:
        """The median and the spread: the extremes of a few repeats, 10th to 90th percentile of ten or more.

        So every repeat of a small number lies inside what is printed.
        """
        n = len(self.seconds)
        if n >= 10:
            spread = f"10–90 %: {duration(self.low)} to {duration(self.high)}, "
        else:
            spread = (
                f"min {duration(min(self.seconds))}, max {duration(max(self.seconds))}, " if n > 1 else ""
            )
        return f"{duration(self.median)} ({spread}n={n})"


def duration(seconds: float) -> str:
    """A time in the unit a reader expects: 0.0032 is "3.20 ms"."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if abs(seconds) >= scale:
            return f"{seconds / scale:.3g} {unit}" if abs(seconds) < 1000 * scale else f"{seconds:.0f} s"
    return "0 s" if seconds == 0 else f"{seconds / 1e-9:.3g} ns"


def counted(number: int, noun: str) -> str:
    """A number with its noun: "1 run", "3 runs"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def measure(
    fn: Callable[..., object],
    *,
    device: torch.device | str | None = None,
    warmup: int = 3,
    repeats: int = 20,
    inputs: Sequence[tuple[Any, ...]] = ((),),
    clock: Clock = time.perf_counter,
) -> Measurement:
    """Time `fn` after a warm-up, waiting for the device before the clock starts and before it stops.

    Args:
        fn: the work; called as fn(*inputs[i]), with the inputs taken in turn.
        device: what to wait for. None means the GPU if there is one.
        warmup: unrecorded calls first (compilers, allocators and caches settle in them).
        repeats: recorded calls.
        inputs: argument tuples to take in turn; with enough of them none is still in the device's cache.
        clock: seconds; replaced in tests.

    Raises:
        LabkitError: repeats < 1, warmup < 0 or no inputs.
    """
    settings: dict[str, Any] = {"device": device, "warmup": warmup, "repeats": repeats, "inputs": inputs}
    return compare({"fn": fn}, clock=clock, **settings)["fn"]


def compare(
    fns: dict[str, Callable[..., object]],
    *,
    device: torch.device | str | None = None,
    warmup: int = 3,
    repeats: int = 20,
    inputs: Sequence[tuple[Any, ...]] = ((),),
    clock: Clock = time.perf_counter,
) -> dict[str, Measurement]:
    """Time several functions in one run, a round at a time, so that heat and neighbours disturb all alike.

    Every second round goes backwards (A B, B A, …), which cancels a steady drift; all functions of a round
    get the same input. Arguments are those of `measure`.
    """
    if repeats < 1 or warmup < 0 or not inputs or not fns:
        raise LabkitError(
            f"Cannot time {counted(len(fns), 'function')} with {counted(repeats, 'repeat')}, "
            f"{counted(warmup, 'warm-up')} and {counted(len(inputs), 'input')}.",
            "Give at least one function, one repeat and one input, and no negative warm-up.",
        )
    for index in range(warmup):
        for fn in fns.values():
            fn(*inputs[index % len(inputs)])
    taken: dict[str, list[float]] = {name: [] for name in fns}
    for index in range(repeats):
        names = list(fns) if index % 2 == 0 else list(reversed(fns))
        arguments = inputs[(warmup + index) % len(inputs)]
        for name in names:
            synchronize(device)
            start = clock()
            fns[name](*arguments)
            synchronize(device)
            taken[name].append(clock() - start)
    return {name: Measurement(tuple(seconds)) for name, seconds in taken.items()}


@dataclass(frozen=True)
class Latency:
    """One request's life: when it was sent and when each of its tokens arrived [s, one clock].

    Definitions differ between tools; these are the course's. With n tokens,
    E2E = TTFT + TPOT * (n - 1) holds by construction.

    Args:
        sent: when the request was sent (under an open-loop load: when it was due).
        stamps: when each token reached the host, in order.
        silent: leading tokens that carry no text (special ones, the first half of a character). The user
            has seen nothing yet, so TTFT and n count from the token after them.
    """

    sent: float
    stamps: tuple[float, ...]
    silent: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.silent < len(self.stamps):
            raise LabkitError(
                f"A latency needs a token with text; got {len(self.stamps)}, {self.silent} of them silent.",
                "Record a stamp for every token, and use Latency only for requests that produced text.",
            )
        times = (self.sent, *self.stamps)
        if not all(earlier <= later for earlier, later in zip(times, times[1:], strict=False)):
            raise LabkitError("Token stamps go back in time or are NaN.", "Take all from one clock.")

    @property
    def tokens(self) -> int:
        """n: the first token with text and all after it."""
        return len(self.stamps) - self.silent

    @property
    def ttft(self) -> float:
        """Time to first token [s]: sent → first token that carries text."""
        return self.stamps[self.silent] - self.sent

    @property
    def e2e(self) -> float:
        """End to end [s]: sent → last token."""
        return self.stamps[-1] - self.sent

    @property
    def tpot(self) -> float | None:
        """Time per output token [s]: (E2E − TTFT)/(n − 1). With one token there is no pace: None."""
        return (self.e2e - self.ttft) / (self.tokens - 1) if self.tokens > 1 else None

    @property
    def itl(self) -> tuple[float, ...]:
        """Inter-token latencies [s]: the n − 1 gaps between consecutive tokens; pool them over requests."""
        seen = self.stamps[self.silent :]
        return tuple(later - earlier for earlier, later in zip(seen, seen[1:], strict=False))


def total_latency(ttft: float, tpot: float, n: int) -> float:
    """The latency law [s]: TTFT + TPOT * (n − 1) for n ≥ 1 output tokens."""
    if n < 1:
        raise LabkitError(
            f"A request of {counted(n, 'token')} has no latency.", "Ask for at least one output token."
        )
    return ttft + tpot * (n - 1)


def ttft_share(ttft: float, tpot: float, n: int) -> float:
    """The part of the total that is spent before the first token, 0 to 1."""
    total = total_latency(ttft, tpot, n)
    if total <= 0:
        raise LabkitError("The total latency is zero, so it has no shares.", "Give a positive TTFT or TPOT.")
    return ttft / total


def tokens_within(ttft: float, tpot: float, budget: float) -> int:
    """The most output tokens whose total latency is ≤ budget [s]; 0 when even the first comes too late.

    A total that misses the budget by rounding alone (a relative 1e-9) counts as within it, so that
    40 ms + 32 * 5 ms fits into 200 ms as it does on paper.
    """
    if ttft < 0 or tpot <= 0:
        raise LabkitError(f"TTFT {ttft} s and TPOT {tpot} s count no tokens.", "Give TTFT ≥ 0, TPOT > 0.")
    allowed = budget * (1 + 1e-9)
    return 0 if ttft > allowed else math.floor((allowed - ttft) / tpot) + 1
