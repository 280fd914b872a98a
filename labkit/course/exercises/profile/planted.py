"""Timelines of one request with a known fault: what the host did, and when the device was busy.

A decode loop is simulated: the host launches kernels into a queue, the device works through it. Each fault is
one that real services have, and is known exactly, which no real trace can promise.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

Event = tuple[str, float, float]  # what the host does, start, end in seconds
Busy = tuple[float, float]  # start, end in seconds
FAULTS = ("tokenize", "launch", "synchronize", "stream", "device")


@dataclass
class _Run:
    """Host and device as the loop goes on; times in microseconds."""

    now: float = 0.0
    free: float = 0.0
    host: list[tuple[str, float, float]] = field(default_factory=list)
    device: list[tuple[float, float]] = field(default_factory=list)

    def work(self, name: str, length: float) -> None:
        self.host.append((name, self.now, self.now + length))
        self.now += length

    def launch(self, cost: float, kernel: float) -> None:
        start = max(self.now + cost, self.free)
        if self.device and start <= self.device[-1][1]:
            self.device[-1] = (self.device[-1][0], start + kernel)
        else:
            self.device.append((start, start + kernel))
        self.free = start + kernel
        self.work("launch", cost)

    def wait(self, wake: float) -> None:
        self.work("synchronize", max(self.free - self.now, 0.0) + wake)


def planted_timeline(fault: str, rng: random.Random) -> tuple[list[Event], list[Busy]]:
    """One request whose device idles because of `fault`; "device" is a healthy one, busy throughout.

    Returns:
        host: events (name, start, end), one after another without a gap, from 0; launches are merged.
        device: busy intervals (start, end), disjoint and in order. Seconds.
    """
    draw: Callable[[float, float], float] = rng.uniform
    kernel = draw(2.0, 3.0) if fault == "launch" else draw(18, 24)
    cost = draw(6, 8) if fault == "launch" else draw(3, 5)
    tokens, kernels = rng.randint(14, 18), rng.randint(8, 10)
    run = _Run()
    run.work("tokenize", tokens * kernels * kernel * draw(0.6, 0.8) if fault == "tokenize" else draw(20, 40))
    for _ in range(tokens):
        for _ in range(kernels):
            run.launch(cost * draw(0.9, 1.1), kernel * draw(0.9, 1.1))
        if fault == "synchronize":
            run.wait(draw(4, 6))
            run.work("sample", draw(60, 90))
        else:
            run.work("sample", draw(3, 5))
        if fault == "stream":
            run.work("stream", kernels * kernel * draw(1.4, 1.8))
    run.wait(draw(4, 6))
    run.work("detokenize", draw(10, 20))
    host = [(name, start / 1e6, end / 1e6) for name, start, end in _merged(run.host)]
    return host, [(start / 1e6, end / 1e6) for start, end in run.device]


def scattered_timeline(idle: float, rng: random.Random) -> tuple[list[Event], list[Busy], str]:
    """A request whose device idles the share `idle` of the time, a little after each of many host events.

    One activity causes a few long gaps and thereby most of the idle time, another one most of the gaps. The host goes
    on for a while after the device's last interval.

    Returns:
        host, device: as in `planted_timeline`.
        most: the activity with the most idle time.
    """
    most, other = rng.sample(["sample", "stream", "synchronize"], 2)
    causes = [most] * 4 + [other] * rng.randint(10, 14)
    rng.shuffle(causes)
    causes.insert(0, "tokenize")
    share = {most: 0.55 / 4, other: 0.40 / (len(causes) - 5), "tokenize": 0.05}
    busy = [rng.uniform(1, 2) for _ in causes]
    host: list[Event] = []
    device: list[Busy] = []
    now = asked = 0.0  # where the device's time, and the host's, is accounted for
    for cause, length in zip(causes, busy, strict=True):
        gap, work = idle * share[cause], (1 - idle) * length / sum(busy)
        begin = max(0.0, now - rng.uniform(0.1, 0.4) * work)  # the device has still something to do
        until = now + rng.uniform(0.2, 0.8) * gap
        host += [("launch", asked, begin)] if begin > asked else []
        host.append((cause, begin, until))
        device.append((now + gap, now + gap + work))
        now, asked = now + gap + work, until
    host += [("launch", asked, now), ("detokenize", now, 1.3 * now)]
    return host, device, most


def _merged(host: list[Event]) -> list[Event]:
    """Neighbouring events of the same name as one."""
    merged: list[Event] = []
    for name, start, end in host:
        if merged and merged[-1][0] == name:
            merged[-1] = (name, merged[-1][1], end)
        else:
            merged.append((name, start, end))
    return merged
