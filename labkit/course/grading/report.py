"""Grades in words, as JSON and as CSV."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.course import texts
from labkit.course.grading.run import Run
from labkit.course.grading.verdict import FAILED, OPEN, PASSED, UNVERIFIED, Verdict

ALL_PASSED, SOME_FAILED, COULD_NOT_RUN, SOME_UNVERIFIED = 0, 1, 2, 3
MARKS = {PASSED: "✓", FAILED: "✗", OPEN: "○", UNVERIFIED: "–"}


@dataclass(frozen=True)
class Grade:
    """One file's grade. `error` says why there is none; `run` is None when the notebook was not run."""

    file: Path
    notebook: str = ""
    verdicts: tuple[Verdict, ...] = ()
    run: Run | None = None
    error: str = ""

    @property
    def points(self) -> int:
        return sum(verdict.points for verdict in self.verdicts)

    @property
    def possible(self) -> int:
        return sum(verdict.exercise.points for verdict in self.verdicts)

    @property
    def code(self) -> int:
        """The exit code that this file alone would give."""
        statuses = {verdict.status for verdict in self.verdicts}
        if self.error or (self.run and not self.run.possible):
            return COULD_NOT_RUN
        if statuses & {FAILED, OPEN} or (self.run and not self.run.finished):
            return SOME_FAILED
        return SOME_UNVERIFIED if UNVERIFIED in statuses else ALL_PASSED


def exit_code(grades: Sequence[Grade]) -> int:
    """One code for a class: what could not run outweighs what failed, which outweighs what could not be verified."""
    codes = {grade.code for grade in grades}
    return next((code for code in (COULD_NOT_RUN, SOME_FAILED, SOME_UNVERIFIED) if code in codes), ALL_PASSED)


def as_text(grade: Grade) -> str:
    """One file's verdicts for people."""
    if grade.error:
        return f"{_printable(str(grade.file))}\n  {_indented(grade.error)}\n"
    head = texts.text("grade.headline", notebook=grade.notebook, points=grade.points, possible=grade.possible)
    lines = [_printable(str(grade.file)), f"  {head}"]
    width = max((len(verdict.exercise.name) for verdict in grade.verdicts), default=0)
    for verdict in grade.verdicts:
        exercise = verdict.exercise
        points = texts.text("grade.points", points=verdict.points, possible=exercise.points)
        status = texts.text(f"grade.{verdict.status.replace(' ', '_')}")
        lines.append(
            f"  {MARKS[verdict.status]} {exercise.name:<{width}}  {points:>7}  {exercise.level:<5}  {status}"
        )
        if verdict.message:
            lines.append(f"      {_indented(verdict.message, 6)}")
    return "\n".join(lines) + "\n"


def run_as_text(grade: Grade, run: Run) -> str:
    """How one file's run went, which is known long after its verdicts."""
    return f"{_printable(str(grade.file))}\n  {_indented(run.message)}\n"


def _indented(text: str, by: int = 2) -> str:
    return _printable(text).replace("\n", "\n" + " " * by)


def _printable(text: str) -> str:
    """Without what a terminal obeys (cursor moves could paint over the report) or no encoding can write.

    A learner's exceptions and file names end up here: a lone surrogate must not take the class's report down.
    """
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def as_json(grades: Sequence[Grade]) -> str:
    """Every grade, for programs."""
    return json.dumps([_plain(grade) for grade in grades], indent=2, ensure_ascii=False)


def _plain(grade: Grade) -> dict[str, Any]:
    rows = [{key: row[key] for key in row if key not in ("file", "notebook")} for row in _rows(grade)]
    run = grade.run
    return {
        "file": _printable(str(grade.file)),
        "notebook": grade.notebook,
        "points": grade.points,
        "possible": grade.possible,
        "exit_code": grade.code,
        "error": _printable(grade.error),
        "run": run
        and {"finished": run.finished, "message": _printable(run.message), "seconds": round(run.seconds, 1)},
        "exercises": [] if grade.error else rows,
    }


def as_csv(grades: Sequence[Grade]) -> str:
    """One line an exercise; a file without a grade has one line that says why."""
    out = io.StringIO()
    columns = ("file", "notebook", "exercise", "level", "points", "possible", "status", "message", "seconds")
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    for grade in grades:
        writer.writerows(_rows(grade))
    return out.getvalue()


def _rows(grade: Grade) -> list[dict[str, Any]]:
    where = {"file": _printable(str(grade.file)), "notebook": grade.notebook}
    if grade.error:
        return [{**where, "status": "could not run", "message": _printable(grade.error)}]
    return [
        {
            **where,
            "exercise": verdict.exercise.name,
            "level": verdict.exercise.level,
            "points": verdict.points,
            "possible": verdict.exercise.points,
            "status": verdict.status,
            "message": _printable(verdict.message),
            "seconds": round(verdict.seconds, 2),
        }
        for verdict in grade.verdicts
    ]
