"""A fixed-size history for weather readings.

The station on the roof reports every ten minutes and has very little memory,
so the oldest reading is overwritten once the buffer is full.
"""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Reading:
    """One report: minutes since midnight, temperature in °C, wind in m/s."""

    minute: int
    temperature: float
    wind: float = 0.0

    def wind_chill(self) -> float:
        """Return the felt temperature; calm or warm air is returned unchanged."""
        speed = self.wind * 3.6
        if self.temperature > 10 or speed < 4.8:
            return self.temperature
        factor = speed**0.16
        return 13.12 + 0.6215 * self.temperature - 11.37 * factor + 0.3965 * self.temperature * factor


class RingBuffer:
    """Keeps the last `capacity` readings in arrival order."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be positive, got {capacity}")
        self._slots: list[Reading | None] = [None] * capacity
        self._head = 0  # where the next reading goes
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Reading]:
        start = (self._head - self._count) % len(self._slots)
        for offset in range(self._count):
            reading = self._slots[(start + offset) % len(self._slots)]
            if reading is not None:
                yield reading

    @property
    def full(self) -> bool:
        return self._count == len(self._slots)

    def push(self, reading: Reading) -> Reading | None:
        """Store a reading and return the one that had to make room, if any."""
        evicted = self._slots[self._head]
        self._slots[self._head] = reading
        self._head = (self._head + 1) % len(self._slots)
        self._count = min(self._count + 1, len(self._slots))
        return evicted

    def latest(self) -> Reading:
        if not self._count:
            raise IndexError("no reading has arrived yet")
        reading = self._slots[self._head - 1]
        assert reading is not None
        return reading

    def mean_temperature(self) -> float:
        if not self._count:
            return float("nan")
        return sum(r.temperature for r in self) / self._count

    def trend(self) -> float:
        """Degrees per hour, from a straight line fitted to the stored readings."""
        if self._count < 2:
            return 0.0
        mean_minute = sum(r.minute for r in self) / self._count
        mean_temp = self.mean_temperature()
        above = sum((r.minute - mean_minute) * (r.temperature - mean_temp) for r in self)
        below = sum((r.minute - mean_minute) ** 2 for r in self)
        return 60 * above / below if below else 0.0


def demo() -> dict[str, float]:
    history = RingBuffer(capacity=4)
    dropped = []
    for step, degrees in enumerate([3.0, 3.5, 4.0, 4.5, 5.0, 5.5]):
        old = history.push(Reading(step * 10, degrees, wind=6.0))
        if old is not None:
            dropped.append(old.temperature)
    return {
        "kept": len(history),
        "dropped": sum(dropped),
        "mean": history.mean_temperature(),
        "per_hour": round(history.trend(), 6),
        "felt": round(history.latest().wind_chill(), 2),
    }


if __name__ == "__main__":
    for name, value in demo().items():
        print(f"{name:>10}: {value}")
