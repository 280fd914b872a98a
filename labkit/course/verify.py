"""Run an exercise's check against an answer and say the outcome in words.

The notebook's `check` and the grader both come here: the first with the learner's function itself (`guarded`), the
second with a stand-in that calls it in another process. So they agree.
"""

import contextlib
import functools
import inspect
import io
import random
import textwrap
import traceback
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from labkit.course import texts
from labkit.course.exercise import AnswerRaised, CheckFailed, Exercise, NotAttempted, Wrong
from labkit.course.grading import interpret, wire
from labkit.course.texts.shown import show
from labkit.errors import LabkitError

Answer = Callable[..., Any]
PRINTED_LINES, PRINTED_CHARACTERS = 8, 20_000
WIDTH = 100


class _Witness:
    """Calls the answer and remembers the last call, so that a failure can name its input."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.arguments: str | None = None
        self.returned: str | None = None
        functools.update_wrapper(self, answer, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.arguments, self.returned = _given(args, kwargs), None
        result = self._answer(*args, **kwargs)
        self.returned = show(result)
        return result

    def changed(self) -> str:
        """The arguments of a call that changed them, as whoever made the call tells: `guarded`, or a session."""
        return str(getattr(getattr(self._answer, "__self__", self._answer), "changed", ""))

    def printed(self) -> list[str]:
        """The end of what the last call printed, where the answer tells (see `guarded`)."""
        lines = str(getattr(self._answer, "printed", "")).splitlines()[-PRINTED_LINES:]
        return [texts.text("check.printed", line=line) for line in lines]


def verify(exercise: Exercise, answer: Answer, seed: int) -> None:
    """Check one answer on the inputs that `seed` gives; returning means right.

    Args:
        exercise: what to check against.
        answer: a callable that raises AnswerRaised where the learner's function raised (see `guarded`).
        seed: decides the random inputs.

    Raises:
        NotAttempted: the answer is still the stub.
        CheckFailed: the answer is wrong, raised, took other arguments or returned something unusable.
    """
    witness = _Witness(answer)
    try:
        exercise.check(witness, random.Random(seed))
        if exercise.keeps_arguments and witness.changed():
            raise Wrong("changed", {"arguments": witness.changed()})
    except Wrong as wrong:
        raise _failed(exercise, wrong.key, wrong.fields, seed, witness.printed()) from None
    except AnswerRaised as raised:
        if raised.kind == "NotImplementedError" and not raised.message:
            raise NotAttempted(texts.text("check.not_attempted", name=exercise.name)) from None
        fields = {"kind": raised.kind, "message": raised.message, "arguments": witness.arguments}
        raise _failed(exercise, "raised", fields, seed, [*raised.lines, *witness.printed()]) from None
    except LabkitError:
        raise
    except Exception as error:
        if witness.returned is None:
            raise  # nothing came back yet, so the fault is the check's own
        # The check stumbled over what came back: a None, a string, a tuple of the wrong length.
        fields = {"arguments": witness.arguments, "returned": witness.returned, "error": str(error)}
        raise _failed(exercise, "unusable", fields, seed, witness.printed()) from None


class _Tail(io.StringIO):
    """Keeps the end of what is printed, so that an endless loop that prints does not fill the memory."""

    def write(self, text: str) -> int:
        if self.tell() > PRINTED_CHARACTERS:
            self.seek(0)
            self.truncate()
        super().write(text[-PRINTED_CHARACTERS:])
        return len(text)


def guarded(function: Answer) -> Answer:
    """The learner's function as a check may call it: it gets copies, and its exceptions become AnswerRaised.

    What it prints is held back (a check may call it hundreds of times): the last call's text is left in
    `call.printed`, and a failure shows the end of it. The arguments of a call that changed them are left in
    `call.changed`. A Triton kernel becomes what launches it in the interpreter, as in a learner's process.
    """
    function = interpret.launcher(function)
    home = getattr(function, "home", "")

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        _bind(function, args, kwargs)
        printed = _Tail()
        given, named = _copied(args), _copied(kwargs)
        before = wire.snapshot(given, named)
        try:
            with contextlib.redirect_stdout(printed):
                result = function(*given, **named)
            if wire.snapshot(given, named) != before:
                call.__dict__["changed"] = _given(args, kwargs)
            return wire.unpack(wire.pack(result))  # nothing counts here that the grader would not receive
        except wire.NotPlain as error:
            raise Wrong("unplain", {"returned": str(error), "arguments": _given(args, kwargs)}) from None
        except (Wrong, AnswerRaised):
            raise  # from a callable that the check passed in
        except (Exception, SystemExit) as error:
            raise AnswerRaised(
                type(error).__name__, str(error), _own_lines(error.__traceback__, home)
            ) from None
        finally:
            call.__dict__["printed"] = printed.getvalue()

    return call


def _bind(function: Answer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Say so plainly when the function does not take the arguments that the exercise gives it."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some callables written in C have none
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        said = f"{getattr(function, '__name__', 'function')}{signature}"
        fields = {"signature": said, "arguments": _given(args, kwargs), "error": str(error)}
        raise Wrong("signature", fields) from None


def _given(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    return ", ".join([*map(_named, args), *(f"{key}={_named(value)}" for key, value in kwargs.items())])


def _named(value: Any) -> str:
    """A callable by its name, which says more than its type; anything else as it is."""
    return str(getattr(value, "__name__", "a function")) if callable(value) else show(value)


def _copied(value: Any) -> Any:
    """Plain values copied, so that a function which changes its arguments does not change the check's."""
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return type(value)(_copied(item) for item in value)
    if type(value) is dict:
        return {key: _copied(item) for key, item in value.items()}
    kind = type(value)
    if kind.__module__ == "torch" and hasattr(value, "clone"):
        return value.clone()
    if kind.__module__ == "numpy" and hasattr(value, "copy"):
        return value.copy()
    return value


def _own_lines(trace: TracebackType | None, home: str = "") -> list[str]:
    """The learner's part of a traceback: what lies in `home`, or in the file of the first frame below the guard."""
    frames = traceback.extract_tb(trace)[1:]
    if not frames:
        return []
    home = home or frames[0].filename
    own = [frame for frame in frames if frame.filename == home]
    shown = own if len(own) <= 4 else [*own[:2], *own[-2:]]  # a runaway recursion repeats itself
    lines = [f"line {frame.lineno}, in {frame.name}:  {frame.line}" for frame in shown]
    if len(own) > len(shown):
        lines.insert(2, f"… {len(own) - len(shown)} more calls …")
    return lines


def _failed(
    exercise: Exercise, key: str, fields: dict[str, Any], seed: int, lines: Sequence[str] = ()
) -> CheckFailed:
    """The words for one failure: which exercise, what does not hold, the learner's own lines, and the seed."""
    name = exercise.name
    title = texts.exercise(exercise.notebook, name).title
    said = texts.failure(exercise.notebook, name, key, {"name": name, **fields})
    body = [*said.splitlines(), *lines, *texts.text("check.reproduce", name=name, seed=seed).splitlines()]
    wrapped = [part for line in body for part in _wrapped(line)]
    return CheckFailed("\n".join([texts.text("check.failed", name=name, title=title), *wrapped]), key, seed)


def _wrapped(line: str) -> list[str]:
    """A line indented under the headline and broken at spaces; what already has an indent keeps it."""
    indent = "  " + " " * (len(line) - len(line.lstrip()))
    return textwrap.wrap(
        line.strip(),
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
    ) or [""]
