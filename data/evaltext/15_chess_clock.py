"""A chess clock with increment and delay, and its tests.

Only one side runs at a time. Pressing your button stops your clock, adds the
increment, and starts the opponent's.
"""

import enum
import io
import time
import unittest
from unittest import mock


class Side(enum.IntEnum):
    WHITE = 0
    BLACK = 1

    @property
    def opponent(self) -> "Side":
        return Side(1 - self)


class FlagFallen(Exception):
    """Raised when a move is attempted with no time left."""


class ChessClock:
    """
    Parameters
    ----------
    minutes : float
        Time each player starts with.
    increment, delay : float, optional
        Seconds added after a move, and seconds at its start that cost nothing.
    now : callable, optional
        Returns seconds as a float; replaced in the tests.
    """

    def __init__(self, minutes, increment=0.0, delay=0.0, now=time.monotonic):
        self._left = [minutes * 60.0, minutes * 60.0]
        self._increment, self._delay = increment, delay
        self._now = now
        self._running = None
        self._since = 0.0
        self.moves = 0

    @property
    def running(self):
        return self._running

    def remaining(self, side):
        """Seconds left for `side`, never below zero."""
        left = self._left[side]
        if side is self._running:
            left -= max(0.0, self._now() - self._since - self._delay)
        return max(0.0, left)

    def start(self, side=Side.WHITE):
        if self._running is not None:
            raise RuntimeError("the clock is already running")
        self._running, self._since = side, self._now()

    def pause(self):
        """Freeze both clocks and return the side that was to move."""
        side = self._running
        if side is None:
            raise RuntimeError("nothing to pause")
        self._left[side] = self.remaining(side)
        self._running = None
        return side

    def press(self):
        side = self._running
        if side is None:
            raise RuntimeError("start the clock first")
        left = self.remaining(side)
        if left == 0.0:
            raise FlagFallen(f"{side.name.title()} has lost on time after {self.moves} half-moves")
        self._left[side] = left + self._increment
        self.moves += 1
        self._running, self._since = side.opponent, self._now()

    def __format__(self, spec):
        separator = spec or " | "
        return separator.join(face(self.remaining(side)) for side in Side)


def face(seconds):
    """Tenths appear only in the last twenty seconds.

    >>> face(3725), face(61.4), face(9.87)
    ('1:02:05', '1:01', '0:09.8')
    """
    if seconds < 20:
        whole, tenth = divmod(int(seconds * 10), 10)
        return f"0:{whole:02d}.{tenth}"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class ClockTest(unittest.TestCase):
    def setUp(self):
        self.now = mock.Mock(return_value=100.0)

    def wait(self, seconds):
        self.now.return_value += seconds

    def test_increment_is_added_after_the_move(self):
        clock = ChessClock(3, increment=2, now=self.now)
        clock.start()
        self.wait(10)
        clock.press()
        self.assertAlmostEqual(clock.remaining(Side.WHITE), 172)
        self.assertIs(clock.running, Side.BLACK)

    def test_quick_moves_are_free_with_delay(self):
        clock = ChessClock(1, delay=5, now=self.now)
        clock.start()
        for thinking in (4, 5, 7):
            self.wait(thinking)
            clock.press()
        self.assertEqual([clock.remaining(side) for side in Side], [58, 60])

    def test_pause_keeps_the_time(self):
        clock = ChessClock(2, now=self.now)
        clock.start()
        self.wait(30)
        self.assertEqual(clock.pause(), Side.WHITE)
        self.wait(1000)
        self.assertEqual(f"{clock}", "1:30 | 2:00")
        self.assertRaises(RuntimeError, clock.press)


def demo():
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(ClockTest)
    outcome = unittest.TextTestRunner(verbosity=0, stream=io.StringIO()).run(suite)
    return outcome.testsRun, outcome.wasSuccessful()


if __name__ == "__main__":
    unittest.main()
