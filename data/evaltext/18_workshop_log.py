"""Logging, retries and timing for the bicycle workshop's nightly jobs."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import io
import json
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

log = logging.getLogger("workshop")
current_job: contextvars.ContextVar[str] = contextvars.ContextVar("current_job", default="-")


class JsonFormatter(logging.Formatter):
    KEEP = ("bike", "seconds", "attempt")

    def format(self, record: logging.LogRecord) -> str:
        line = {"level": record.levelname.lower(), "job": current_job.get(), "text": record.getMessage()}
        line.update({name: getattr(record, name) for name in self.KEEP if hasattr(record, name)})
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = record.exc_info[0].__name__
        return json.dumps(line)


@contextlib.contextmanager
def logging_to(stream: io.TextIOBase, level: int | str = logging.INFO) -> Iterator[logging.Logger]:
    """Send the workshop's records to `stream`, and leave no trace afterwards."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    before = log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(level)
    log.propagate = False
    try:
        yield log
    finally:
        log.removeHandler(handler)
        log.setLevel(before[0])
        log.propagate = before[1]


class job(contextlib.ContextDecorator):
    """Names a stretch of work; use it with `with` or as a decorator."""

    def __init__(self, name: str, clock: Callable[[], float] = time.perf_counter) -> None:
        self.name, self.clock = name, clock

    def __enter__(self) -> job:
        self._token = current_job.set(self.name)
        self._began = self.clock()
        log.debug("begin")
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        took = round(self.clock() - self._began, 3)
        if kind is None:
            log.info("done", extra={"seconds": took})
        else:
            log.error("failed with %s", kind.__name__, extra={"seconds": took})
        current_job.reset(self._token)


def retry(
    *errors: type[Exception],
    attempts: int = 3,
    pause: float = 0.5,
    sleep: Callable[[float], None] = time.sleep,
) -> Callable[[F], F]:
    """Call again after one of `errors`, doubling the pause each time."""
    if not errors:
        raise TypeError("name at least one exception to retry on")

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            for attempt in range(1, attempts + 1):
                try:
                    return function(*args, **kwargs)
                except errors:
                    if attempt == attempts:
                        raise
                    log.warning("trying again", exc_info=True, extra={"attempt": attempt})
                    sleep(pause * 2 ** (attempt - 1))

        return wrapper  # type: ignore[return-value]

    return decorate


class SupplierBusy(ConnectionError):
    """The spare parts service asks us to come back later."""


def demo() -> tuple[list[float], list[dict[str, Any]]]:
    naps: list[float] = []
    replies = iter([SupplierBusy(), SupplierBusy(), "two brake pads"])

    @retry(SupplierBusy, pause=0.25, sleep=naps.append)
    def order_parts() -> str:
        reply = next(replies)
        if isinstance(reply, Exception):
            raise reply
        return reply

    ticks = iter(range(100))

    @job("inspection", clock=lambda: float(next(ticks)))
    def inspect(bike: str) -> None:
        log.info("ordered %s", order_parts(), extra={"bike": bike})

    stream = io.StringIO()
    with logging_to(stream):
        inspect("red tandem")
        with contextlib.suppress(ZeroDivisionError), job("billing", clock=lambda: 0.0):
            log.info("share is %d", 12 // len(naps[2:]))
    return naps, [json.loads(line) for line in stream.getvalue().splitlines()]
