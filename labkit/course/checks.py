"""`check`: what a learner calls below each exercise.

check.latency_terms(latency_terms)             one line when right; what is wrong, in words, when not
check.latency_terms(latency_terms, seed=4711)  the same inputs again
check.hint("latency_terms")                    the next of three hints
fn = check.use("latency_terms", fn)            the learner's function when right, labkit's own otherwise
"""

import importlib.util
import random
import sys
from collections.abc import Callable
from typing import Any

from labkit.course import exercises, progress, texts
from labkit.course.exercise import CheckFailed, Exercise, Teaching
from labkit.course.limit import TooLong, can_limit, time_limit
from labkit.course.scope import is_labkits_own, missing_when_graded
from labkit.course.texts.shown import show
from labkit.course.verify import guarded, verify
from labkit.errors import LabkitError

Function = Callable[..., Any]
LIMIT = 20.0  # seconds for one check; all of them take well under one
USE_SEED = 0  # check.use must behave the same on every run


class UnknownExercise(LabkitError, AttributeError):
    """`check.NAME` for a name that no exercise has."""


class Stopped(Teaching, KeyboardInterrupt):
    """The learner interrupted a check; says on which input their function was running."""


class Check:
    """Every exercise is an attribute; see the module's docstring."""

    def __init__(self) -> None:
        self._right: dict[str, Function] = {}

    def __getattr__(self, name: str) -> Function:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            exercise = exercises.find(name)
        except LabkitError as error:
            raise UnknownExercise(error.what, error.remedy) from None
        return self._check_of(exercise)

    def __dir__(self) -> list[str]:
        return sorted({*exercises.names(), "hint", "use"})

    def __repr__(self) -> str:
        return texts.text("check.about", names=", ".join(exercises.names()))

    def use(self, name: str, function: Function | None = None) -> Function:
        """`function` when it passes the check of `name`; otherwise labkit's own, with a notice.

        So later cells run whether or not the exercise is done. Never raises for a wrong answer.
        """
        exercise = exercises.find(name)
        key = "use.not_attempted" if function is None else self._verdict(exercise, function)
        if key == "right" and function is not None:
            return function
        print(texts.text(key, name=name))
        return exercise.reference

    def hint(self, name: str, number: int = 0) -> None:
        """Print the next hint for an exercise, or hint `number` (1 to 3)."""
        exercise = exercises.find(name)
        hints = texts.exercise(exercise.notebook, name).hints
        if not isinstance(number, int) or not 0 <= number <= len(hints):
            raise LabkitError(f"There is no hint {number!r}.", f"{name} has hints 1 to {len(hints)}.")
        shown = progress.remember_hint(exercise, number, len(hints))
        print(texts.text("hint.shown", number=shown, all=len(hints)), hints[shown - 1])
        if shown < len(hints):
            print(texts.text("hint.more", name=name))
        else:
            print(texts.text("hint.last", notebook=exercise.notebook))
        if not can_limit():
            print(texts.text("hint.interrupt"))

    def _check_of(self, exercise: Exercise) -> Function:
        def run(function: Function | None = None, *, seed: int | None = None) -> None:
            self._run(exercise, function, seed)

        title = texts.exercise(exercise.notebook, exercise.name).title
        run.__name__ = run.__qualname__ = exercise.name
        run.__doc__ = texts.text("check.doc", name=exercise.name, title=title)
        return run

    def _run(self, exercise: Exercise, function: Function | None, seed: int | None) -> None:
        """Check, remember, print the one line; raise what the learner should read."""
        name = exercise.name
        if not callable(function):
            raise CheckFailed(texts.text("check.no_function", name=name, got=show(function)), "no_function")
        if is_labkits_own(function, exercise.reference):
            raise CheckFailed(texts.text("check.own_function", name=name), "own_function")
        if not available(exercise.needs):
            print(texts.text("check.unverified", name=name, needs=", ".join(sorted(exercise.needs))))
            return
        chosen = random.SystemRandom().randrange(100_000) if seed is None else seed
        try:
            with time_limit(LIMIT):
                verify(exercise, guarded(function), chosen)
        except KeyboardInterrupt:
            raise Stopped(texts.text("check.stopped", name=name)) from None
        except TooLong:
            progress.remember(exercise, passed=False)
            said = texts.text("check.too_long", name=name, seconds=f"{LIMIT:g}", seed=chosen)
            raise CheckFailed(said, "too_long", chosen) from None
        except CheckFailed:
            progress.remember(exercise, passed=False)
            raise
        self._right[name] = function
        progress.remember(exercise, passed=True)
        print(texts.text("check.passed", name=name))
        self._warn(exercise, function)

    def _verdict(self, exercise: Exercise, function: Function) -> str:
        """ "right", or the key of the notice that says why labkit's own function is used."""
        if self._right.get(exercise.name) is function:
            return "right"
        if not callable(function) or is_labkits_own(function, exercise.reference):
            return "use.not_attempted"
        if not available(exercise.needs):
            return "use.unverified"
        try:
            with time_limit(LIMIT):
                verify(exercise, guarded(function), USE_SEED)
        except (CheckFailed, TooLong):
            return "use.wrong"
        except KeyboardInterrupt:
            return "use.stopped"
        except (
            Exception
        ):  # the stub, or a function so odd that the check itself stumbled: later cells must run
            return "use.not_attempted"
        return "right"

    def _warn(self, exercise: Exercise, function: Function) -> None:
        """Name what the answer uses and the grader will not have."""
        for missing, why in sorted(missing_when_graded(function, exercise.notebook).items()):
            print(texts.text(f"scope.{why}", name=exercise.name, missing=missing), file=sys.stderr)


def available(needs: frozenset[str]) -> bool:
    """Whether this machine has what a check needs."""
    if "triton" in needs and importlib.util.find_spec("triton") is None:
        return False
    if "cuda" not in needs:
        return True
    import torch

    return torch.cuda.is_available()


check = Check()
