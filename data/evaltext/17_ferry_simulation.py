"""Cars queue for a small ferry: a discrete-event simulation with generators.

A process is a generator that yields what it waits for, either a number of
minutes or a `Signal`.  The simulator keeps the agenda and resumes them.
"""

import heapq
import random
import statistics
from collections import deque


class Signal:
    """Something several processes can wait for; firing it wakes them all."""

    def __init__(self, name):
        self.name = name
        self.waiting = []

    def __repr__(self):
        return f"<Signal {self.name}, {len(self.waiting)} waiting>"


class Simulator:
    def __init__(self):
        self.now = 0.0
        self._agenda = []
        self._serial = 0

    def start(self, process, delay=0.0):
        self._serial += 1
        heapq.heappush(self._agenda, (self.now + delay, self._serial, process))

    def fire(self, signal):
        woken, signal.waiting = signal.waiting, []
        for process in woken:
            self.start(process)

    def run(self, until):
        while self._agenda and self._agenda[0][0] <= until:
            self.now, _, process = heapq.heappop(self._agenda)
            try:
                request = next(process)
            except StopIteration:
                continue
            if isinstance(request, Signal):
                request.waiting.append(process)
            elif request >= 0:
                self.start(process, request)
            else:
                raise ValueError(f"cannot wait {request} minutes")
        self.now = until


class Ferry:
    def __init__(self, sim, places, crossing, patience):
        self.sim = sim
        self.places = places
        self.crossing = crossing
        self.patience = patience  # sails anyway after this many minutes
        self.lane = deque()
        self.arrival = Signal("arrival")
        self.waits = []
        self.loads = []

    def traffic(self, rng, per_hour):
        """Cars at random, as a Poisson process."""
        while True:
            yield rng.expovariate(per_hour / 60)
            self.lane.append(self.sim.now)
            self.sim.fire(self.arrival)

    def shuttle(self):
        while True:
            while not self.lane:
                yield self.arrival
            deadline = self.lane[0] + self.patience
            while len(self.lane) < self.places and self.sim.now < deadline:
                yield min(1.0, deadline - self.sim.now)
            boarding = [self.lane.popleft() for _ in range(min(self.places, len(self.lane)))]
            self.waits.extend(self.sim.now - since for since in boarding)
            self.loads.append(len(boarding))
            yield 2 * self.crossing


def simulate(per_hour, *, places=6, crossing=8.0, patience=10.0, hours=200, seed=1):
    sim = Simulator()
    ferry = Ferry(sim, places, crossing, patience)
    sim.start(ferry.traffic(random.Random(seed), per_hour))
    sim.start(ferry.shuttle())
    sim.run(until=hours * 60)
    deciles = statistics.quantiles(ferry.waits, n=10)
    return {
        "trips": len(ferry.loads),
        "fill": statistics.fmean(ferry.loads) / places,
        "median_wait": statistics.median(ferry.waits),
        "slow_wait": deciles[8],
        "still_queueing": len(ferry.lane),
    }


def demo():
    header = f"{'cars/h':>7} {'trips':>6} {'full':>6} {'median':>7} {'90%':>7}"
    print(header, "-" * len(header), sep="\n")
    table = {}
    for rate in (4, 10, 16, 20):
        r = table[rate] = simulate(rate)
        print(f"{rate:>7} {r['trips']:>6} {r['fill']:>6.0%} {r['median_wait']:>7.1f} {r['slow_wait']:>7.1f}")
    busier_is_fuller = table[4]["fill"] < table[10]["fill"] < table[20]["fill"]
    return busier_is_fuller, table[20]["slow_wait"] > table[10]["slow_wait"]


if __name__ == "__main__":
    demo()
