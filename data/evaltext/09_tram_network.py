"""Which trams do I take?  Shortest journeys in a network with changes.

The search runs over (stop, line) pairs rather than stops alone, because
changing lines costs time and a path that is best for the stop may be worse
once the wait for the next tram is counted.
"""

from collections import defaultdict
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count, pairwise

CHANGE_MINUTES = 4


@dataclass(frozen=True)
class Leg:
    line: str
    board: str
    alight: str
    minutes: int


class Network:
    def __init__(self):
        self._edges = defaultdict(list)  # stop -> [(neighbour, line, minutes)]
        self._lines = defaultdict(set)  # stop -> lines that call there

    def add_line(self, name, *stops_and_times):
        """Add a line both ways: add_line("4", "Harbour", 3, "Market", 2, "Museum")."""
        stops, times = stops_and_times[::2], stops_and_times[1::2]
        if len(stops) != len(times) + 1:
            raise ValueError(f"line {name}: stops and minutes must alternate")
        for (here, there), minutes in zip(pairwise(stops), times):
            self._edges[here].append((there, name, minutes))
            self._edges[there].append((here, name, minutes))
        for stop in stops:
            self._lines[stop].add(name)

    @property
    def stops(self):
        return sorted(self._lines)

    def hubs(self):
        """Stops where at least two lines meet."""
        return [stop for stop in self.stops if len(self._lines[stop]) > 1]

    def fastest(self, start, goal):
        """Return (minutes, legs), or None when there is no way at all."""
        for stop in (start, goal):
            if stop not in self._lines:
                raise LookupError(f"no tram calls at {stop}")
        tie = count()  # heap entries must never compare their paths
        frontier = [(0, next(tie), start, None, ())]
        settled = set()
        while frontier:
            minutes, _, stop, line, path = heappop(frontier)
            if stop == goal:
                return minutes, merge_legs(path)
            if (stop, line) in settled:
                continue
            settled.add((stop, line))
            for neighbour, next_line, ride in self._edges[stop]:
                wait = CHANGE_MINUTES if line not in (None, next_line) else 0
                step = Leg(next_line, stop, neighbour, ride)
                heappush(frontier, (minutes + wait + ride, next(tie), neighbour, next_line, path + (step,)))
        return None


def merge_legs(path):
    """Join consecutive hops on one line into a single leg."""
    legs = []
    for hop in path:
        if legs and legs[-1].line == hop.line:
            previous = legs.pop()
            hop = Leg(hop.line, previous.board, hop.alight, previous.minutes + hop.minutes)
        legs.append(hop)
    return legs


def describe(legs):
    if not legs:
        return "You are already there."
    return ", then ".join(f"line {leg.line} from {leg.board} to {leg.alight}" for leg in legs) + "."


def demo():
    city = Network()
    city.add_line("1", "Harbour", 3, "Market", 2, "Museum", 4, "Zoo")
    city.add_line("2", "Market", 1, "Station", 1, "Museum")
    city.add_line("7", "Station", 6, "Stadium")
    city.add_line("9", "Airport", 5, "Hotel")
    minutes, legs = city.fastest("Harbour", "Stadium")
    print(f"{minutes} minutes: {describe(legs)}")
    straight, _ = city.fastest("Harbour", "Zoo")
    return minutes, len(legs), straight, city.fastest("Zoo", "Hotel"), city.hubs()


if __name__ == "__main__":
    demo()
