"""What one exercise is, and the few ways in which an answer can fall short of it."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

LEVELS = ("core", "extra")


@dataclass(frozen=True)
class Exercise:
    """One function that a learner writes, and how it is checked.

    Attributes:
        name: the function's name; also the name of its check (`check.NAME`) and of its texts.
        notebook: the notebook it belongs to, such as "01_profile".
        level: "core" (on everyone's path) or "extra".
        points: what it is worth when graded.
        minutes: how long it should take.
        check: called with the learner's function and a seeded `random.Random`. It hands the function plain
            values only (numbers, strings, lists, dicts, tensors, arrays, callables), and reports what is
            wrong through `expect`. Returning means right.
        reference: labkit's own implementation, which `check.use` falls back to.
        keeps_arguments: whether an answer that is right, but changes what it was given, is rejected for that.
        needs: what the check cannot do without, such as {"cuda"} or {"triton"}.
    """

    name: str
    notebook: str
    level: str
    points: int
    minutes: int
    check: Callable[[Callable[..., Any], random.Random], None]
    reference: Callable[..., Any]
    needs: frozenset[str] = frozenset()
    keeps_arguments: bool = False

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise ValueError(f"exercise name {self.name!r} is no Python identifier")
        if self.level not in LEVELS:
            raise ValueError(f"exercise {self.name}: level {self.level!r} is none of {LEVELS}")


class Wrong(Exception):
    """A property that an answer does not have: a key into the exercise's failure texts, and its fields."""

    def __init__(self, key: str, fields: dict[str, Any] | None = None) -> None:
        self.key = key
        self.fields = fields or {}
        super().__init__(key)


def expect(condition: bool, key: str, **fields: Any) -> None:
    """State a property that must hold.

    Args:
        condition: whether it does (anything with a truth value; NaN comparisons are False, as they should be).
        key: names the text to show when it does not, `[<exercise>.failures]` in the catalogue.
        fields: what that text may mention, such as the input, what was wanted and what came back.

    Raises:
        Wrong: when the condition is false.
    """
    if not condition:
        raise Wrong(key, fields)


class AnswerRaised(Exception):
    """The learner's function raised. Carries plain text only, so that it can cross a process boundary.

    Args:
        kind: the exception's class name, "ZeroDivisionError".
        message: its message.
        lines: the learner's own traceback lines, innermost last.
    """

    def __init__(self, kind: str, message: str, lines: Sequence[str] = ()) -> None:
        self.kind = kind
        self.message = message
        self.lines = tuple(lines)
        super().__init__(f"{kind}: {message}" if message else kind)


class Teaching(Exception):
    """An outcome told to the learner in words; Jupyter shows the words alone, without a traceback."""

    def __init__(self, text: str) -> None:
        self.text = text
        super().__init__(text)

    def _render_traceback_(self) -> list[str]:
        return self.text.splitlines()


class CheckFailed(Teaching):
    """The answer is wrong. `key` is the failure text that was used, `seed` reproduces the input."""

    def __init__(self, text: str, key: str = "", seed: int | None = None) -> None:
        self.key = key
        self.seed = seed
        super().__init__(text)


class NotAttempted(Teaching):
    """The answer is still the stub. Shown in dark grey on light grey, since Jupyter's red means a mistake."""

    def _render_traceback_(self) -> list[str]:
        lines = self.text.splitlines()
        width = max(map(len, lines), default=0)
        return [f"\x1b[38;5;236;48;5;254m{line:<{width}}\x1b[0m" for line in lines]
