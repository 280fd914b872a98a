"""The grader's side of one learner's process: run the cells there, call the function, and say how it ended."""

import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from labkit.course import texts
from labkit.course.exercise import AnswerRaised, Wrong
from labkit.course.grading import frames, wire
from labkit.course.grading.workers import GIB, Workers, readable
from labkit.course.texts.shown import show

TICK = 0.05  # seconds between two looks at a learner's process
GRACE = 0.5  # seconds in which a process that hung up may finish dying
IDLE = GIB // 2  # bytes of RAM that a process with torch imported may show by itself
WORDS = (
    "labkit",
    "read",
    "change",
    "process",
    "network",
    "innards",
    "input",
)  # refusals, said in the process
# The answers there are to each message, and how many values each carries.
ANSWERS = {
    "start": {"ready": 0, "undefined": 0, "raised": 3, "callback": 3},
    "call": {"returned": 2, "unplain": 1, "signature": 2, "raised": 3, "callback": 3},
}


@dataclass(frozen=True)
class Job:
    """What a learner's process runs: imports, the learner's own definitions around the answer's cell, and that cell."""

    name: str
    answer: str
    imports: tuple[str, ...] = ()
    above: tuple[str, ...] = ()
    below: tuple[str, ...] = ()


class Ended(Exception):
    """The learner's process came to an end; says how, in a sentence."""


class Session:
    """One exercise's process. `call` stands in for the learner's function when a check runs.

    Args:
        workers: where the process comes from.
        job: what to run in it.
        limit_memory: whether to limit its address space (a process that uses CUDA reserves far more than it has).

    Raises:
        AnswerRaised: the answer's cell raised.
        Wrong: it does not define the function.
        Ended: it ended the process.
    """

    def __init__(self, workers: Workers, job: Job, *, limit_memory: bool = True) -> None:
        self.ended = ""
        self.changed = ""  # the arguments of a call that changed them
        self._callables: list[Callable[..., Any]] = []
        self._done = threading.Event()
        self._limits = workers.seconds, workers.memory
        self._folder = tempfile.mkdtemp(prefix="labkit-answer-")
        self._process = workers.launch(job.imports)
        self._watch = threading.Thread(target=self._watching, daemon=True)
        self._watch.start()
        try:
            if self._ask(("start", self._order(workers, job, limit_memory)))[0] != "ready":
                raise Wrong("undefined", {"name": job.name})
        except BaseException:
            self.close()
            raise

    def _order(self, workers: Workers, job: Job, limit_memory: bool) -> dict[str, Any]:
        """Everything that the process needs to know; see worker.py."""
        return {
            "name": job.name,
            "imports": list(job.imports),
            "above": list(job.above),
            "below": list(job.below),
            "answer": job.answer,
            "folder": self._folder,
            "forbidden": workers.forbidden,
            "readable": readable(),
            "seconds": 10 * int(workers.seconds + 1),
            "memory": workers.memory if limit_memory else None,
            "words": {key: texts.text(f"refused.{key}", path="{path}", event="{event}") for key in WORDS},
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Call the learner's function in its process.

        Raises:
            AnswerRaised: it raised.
            Wrong: it takes other arguments, or returned something that is no plain value.
            Ended: it ended the process.
        """
        answer = self._ask(("call", args, kwargs))
        given = ", ".join([*map(show, args), *(f"{key}={show(value)}" for key, value in kwargs.items())])
        if answer[0] == "returned":
            self.changed = given if answer[2] is True else self.changed
            return answer[1]
        if answer[0] == "signature":
            raise Wrong("signature", {"signature": answer[1], "error": answer[2], "arguments": given})
        raise Wrong("unplain", {"returned": answer[1], "arguments": given})

    def close(self) -> None:
        """End the process and everything it started, and remove its folder."""
        self._done.set()
        self._watch.join()
        self._process.kill()
        for stream in (self._process.incoming, self._process.outgoing):
            try:
                stream.close()
            except OSError:
                pass  # something was still to be sent, to a process that is gone
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _ask(self, message: tuple[Any, ...]) -> tuple[Any, ...]:
        """Send a message and answer callbacks until its own answer is there."""
        if self.ended:
            raise Ended(self.ended)
        expected = ANSWERS[message[0]]
        while True:
            data = wire.pack(message, expose=self._expose)
            try:
                frames.write(self._process.outgoing, data)
                kind, *rest = wire.unpack(frames.read(self._process.incoming))
                if len(rest) != expected[kind]:
                    raise wire.NotPlain(kind)
                if kind == "callback":
                    number, args, kwargs = int(rest[0]), tuple(rest[1]), dict(rest[2])
                    function = self._callables[number]
            except (EOFError, OSError):
                self.ended = self.ended or self._how_it_ended()
                raise Ended(self.ended) from None
            except (TypeError, ValueError, LookupError):  # nothing that the worker script would send
                self.ended = self.ended or texts.text("grade.garbage")
                raise Ended(self.ended) from None
            if kind == "raised":
                raise self._raised(*rest)
            if kind != "callback":
                return kind, *rest
            try:
                message = ("returned", function(*args, **kwargs))
            except (Wrong, AnswerRaised):
                raise  # a verdict, whatever the learner's code would have made of it
            except Exception as error:
                message = ("raised", type(error).__name__, str(error))

    def _raised(self, kind: Any, message: Any, lines: Any) -> AnswerRaised:
        if kind == "MemoryError":
            message = message or texts.text("grade.no_memory", gib=f"{self._limits[1] / GIB:.3g}")
        shown = [str(line) for line in lines] if isinstance(lines, list) else []
        return AnswerRaised(str(kind), str(message), shown)

    def _expose(self, function: Callable[..., Any]) -> int:
        self._callables.append(function)
        return len(self._callables) - 1

    def _watching(self) -> None:
        """End the process when its time or memory is used up. Whoever waits for its answer then reads the end."""
        seconds, memory = self._limits
        deadline = time.monotonic() + seconds
        while not self._done.wait(TICK):
            if time.monotonic() > deadline:
                self.ended = texts.text("grade.time", seconds=f"{seconds:g}")
            elif self._process.memory() > memory + IDLE:
                self.ended = texts.text("grade.memory", gib=f"{memory / GIB:.3g}")
            if self.ended:
                self._process.kill()
                return

    def _how_it_ended(self) -> str:
        """The stream has ended by itself: the process died, or closed it."""
        until = time.monotonic() + GRACE
        while self._process.alive() and time.monotonic() < until:
            time.sleep(TICK / 5)
        if self._process.alive():
            return texts.text("grade.closed")
        code = self._process.wait()
        if code is None:
            return texts.text("grade.died")
        if code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
            return texts.text("grade.crashed", signal=name)
        return texts.text("grade.exited", code=code)
