"""A time limit on code that may never come back, where the platform can interrupt it."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class TooLong(BaseException):
    """The limit is over. No Exception, so that an `except Exception` in a learner's loop does not swallow it."""


def can_limit() -> bool:
    """Whether a limit works here: there is an alarm signal, and this is the thread that receives it."""
    return hasattr(signal, "SIGALRM") and threading.current_thread() is threading.main_thread()


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TooLong inside the block after `seconds`; without a limit where there can be none.

    An alarm that was set before rings afterwards, late if need be. One long call into C is not interrupted.
    """
    if not can_limit():
        yield
        return

    def ring(number: int, frame: Any) -> None:
        raise TooLong

    began = time.monotonic()
    before = signal.signal(signal.SIGALRM, ring)
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(left - (time.monotonic() - began), 1e-3), interval)
