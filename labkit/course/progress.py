"""What a learner has done: which exercises passed, after how many tries and hints, and the points they are worth."""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from labkit.course import exercises, store, texts
from labkit.course.display import MEASURED
from labkit.course.display import show as _display
from labkit.course.exercise import LEVELS, Exercise
from labkit.timing import counted


@dataclass(frozen=True)
class Line:
    """One exercise in the report."""

    exercise: Exercise
    title: str
    passed: bool
    tries: int
    hints: int


@dataclass(frozen=True)
class NotebookReport:
    """One notebook in the report."""

    notebook: str
    lines: tuple[Line, ...]

    def count(self, level: str | None = None) -> tuple[int, int]:
        """(done, all) of the exercises of a level, or of every exercise."""
        mine = [line for line in self.lines if level in (None, line.exercise.level)]
        return sum(line.passed for line in mine), len(mine)

    def minutes(self, level: str) -> int:
        """What the exercises of a level take in all."""
        return sum(line.exercise.minutes for line in self.lines if line.exercise.level == level)

    @property
    def points(self) -> tuple[int, int]:
        """(earned, possible)."""
        earned = sum(line.exercise.points for line in self.lines if line.passed)
        return earned, sum(line.exercise.points for line in self.lines)


@dataclass(frozen=True)
class Report:
    """Progress through one or more notebooks; prints as text, shows as a table in Jupyter."""

    notebooks: tuple[NotebookReport, ...]

    def __str__(self) -> str:
        blocks = []
        for part in self.notebooks:
            marks = [
                f"  {'✓' if line.passed else '○'} {line.exercise.name:<24} {_detail(line)}"
                for line in part.lines
            ]
            blocks.append("\n".join([_headline(part), *marks]))
        return "\n\n".join(blocks) or texts.text("progress.nothing")

    __repr__ = __str__  # what a notebook without HTML shows

    def _repr_html_(self) -> str:
        if not self.notebooks:
            return f"<p>{html.escape(texts.text('progress.nothing'))}</p>"
        return "".join(_block(part) for part in self.notebooks)


def report(notebooks: Sequence[str] = ()) -> Report:
    """Progress through `notebooks` (all that have exercises when none is named)."""
    remembered = store.read()["exercises"]
    parts = []
    for notebook in notebooks or exercises.notebooks():
        lines = tuple(
            _line(exercise, remembered.get(exercise.name, {})) for exercise in exercises.of(notebook)
        )
        parts.append(NotebookReport(notebook, lines))
    return Report(tuple(parts))


def show(notebook: str = "") -> None:
    """Show the progress through one notebook, or through all."""
    _display(report([notebook] if notebook else ()))


def remember(exercise: Exercise, *, passed: bool) -> None:
    """Count a try; a pass stays, whatever later tries say."""

    def change(content: dict[str, Any]) -> None:
        entry = content["exercises"].setdefault(exercise.name, {})
        entry["tries"] = _number(entry.get("tries")) + (0 if entry.get("passed") else 1)
        if passed and not entry.get("passed"):
            entry["passed"] = store.now()

    store.update(change)


def remember_hint(exercise: Exercise, number: int, last: int) -> int:
    """Note that hint `number` of 1 … `last` (0: the next one) is shown, and return its number."""
    shown = number

    def change(content: dict[str, Any]) -> None:
        nonlocal shown
        entry = content["exercises"].setdefault(exercise.name, {})
        seen = _number(entry.get("hints"))
        shown = number or min(seen + 1, last)
        entry["hints"] = max(seen, shown)

    store.update(change)
    return shown


def _line(exercise: Exercise, entry: dict[str, Any]) -> Line:
    title = texts.exercise(exercise.notebook, exercise.name).title
    tries, hints = _number(entry.get("tries")), _number(entry.get("hints"))
    return Line(exercise, title, bool(entry.get("passed")), tries, hints)


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _headline(part: NotebookReport) -> str:
    fields = dict(
        zip(("core", "cores", "extra", "extras"), part.count("core") + part.count("extra"), strict=True)
    )
    fields |= {f"{level}_minutes": _about(part.minutes(level)) for level in LEVELS}
    earned, possible = part.points
    return texts.text("progress.headline", notebook=part.notebook, points=earned, possible=possible, **fields)


def _about(minutes: int) -> int:
    """Minutes to the nearest five: nobody works to the minute."""
    return 5 * round(minutes / 5) if minutes > 5 else minutes


def _detail(line: Line) -> str:
    exercise = line.exercise
    level = texts.text(f"progress.{exercise.level}")
    points = counted(exercise.points, "point")
    return texts.text(
        "progress.detail", level=level, points=points, minutes=exercise.minutes, title=line.title
    )


def _block(part: NotebookReport) -> str:
    """A bar of how far, and one row an exercise."""
    earned, possible = part.points
    width = 100 * earned / possible if possible else 0
    rows = "".join(_row(line) for line in part.lines)
    bar = (
        '<div style="background:#8883;border-radius:4px;height:8px;max-width:32em;margin:4px 0 6px">'
        f'<div style="background:{MEASURED};border-radius:4px;height:8px;width:{width:.0f}%"></div></div>'
    )
    return f"<div><b>{html.escape(_headline(part))}</b>{bar}<table>{rows}</table></div>"


def _row(line: Line) -> str:
    colour, mark = (MEASURED, "✓") if line.passed else ("#888", "○")
    left = 'style="text-align:left"'
    return (
        f'<tr><td style="text-align:left;color:{colour}">{mark}</td>'
        f"<td {left}><code>{html.escape(line.exercise.name)}</code></td>"
        f"<td {left}>{html.escape(_detail(line))}</td></tr>"
    )
