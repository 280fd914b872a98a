"""A simulated accelerator: work is queued at once and done later, on a clock of its own.

It behaves like a GPU seen from Python, but its times are exact and the same on every machine, so that a check
can say what a correct measurement must find.
"""

from collections.abc import Sequence


class SimulatedDevice:
    """Runs launches one after another, each as long as the schedule says.

    Attributes:
        launched: how many launches were made.
        read: how many times the clock was read.
    """

    LAUNCH = 8e-6  # seconds of host time to hand one piece of work over
    WAIT = 2e-6  # seconds of host time for a synchronisation on top of the waiting
    READ = 1e-7  # seconds of host time to read the clock

    def __init__(self, durations: Sequence[float], backlog: float = 0.0) -> None:
        """
        Args:
            durations: seconds of device time of the first, second, ... launch; the last one repeats.
            backlog: seconds of someone else's work that the device still has to do.
        """
        self._durations = list(durations)
        self._host = 0.0
        self._free = backlog
        self.launched = 0
        self.read = 0

    def launch(self) -> None:
        """Queue the next piece of work and return at once."""
        self._host += self.LAUNCH
        duration = self._durations[min(self.launched, len(self._durations) - 1)]
        self._free = max(self._host, self._free) + duration
        self.launched += 1

    def synchronize(self) -> None:
        """Wait until everything queued is done."""
        self._host = max(self._host, self._free) + self.WAIT

    def now(self) -> float:
        """Host clock, in seconds."""
        self._host += self.READ
        self.read += 1
        return self._host
