"""`labkit grade`: from files to a report and an exit code."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from labkit.course import exercises, texts
from labkit.course.grading import notebook, report
from labkit.course.grading.report import Grade
from labkit.course.grading.run import Run, run
from labkit.course.grading.verdict import judge
from labkit.course.grading.workers import GIB, Workers
from labkit.errors import LabkitError

CELL_SECONDS = 120.0
EXERCISE_SECONDS = 30.0
MEMORY = 8.0  # GiB for a notebook's run, or three quarters of the machine's where that is less
EXERCISE_MEMORY = 2.0  # GiB for one answer


def _print(text: str) -> None:
    print(text, flush=True)  # into a file or a pipe as well, it is there at once


def grade(
    files: Sequence[Path],
    *,
    style: str = "text",
    timeout: float | None = None,
    memory: float | None = None,
    run_notebook: bool = True,
    say: Callable[[str], Any] = _print,
) -> int:
    """Grade notebooks and print what they earned.

    Args:
        files: notebooks, or folders of them.
        style: "text", "json" or "csv".
        timeout: seconds for one cell of the run, and for one exercise (default 120 and 30).
        memory: GiB for the run, and at most that for one exercise (default 8, or less on a small machine, and 2).
        run_notebook: also run each notebook from top to bottom; without it only the exercises are graded.
        say: gets the report; as text, each part of it as soon as it is known.

    Returns:
        0 all passed, 1 something failed or was not attempted, 2 something could not run, 3 all that can run here
        passed but some could not be verified.

    Raises:
        LabkitError: when there is nothing to grade, or a limit is not positive.
    """
    if any(limit is not None and not limit > 0 for limit in (timeout, memory)):
        raise LabkitError(texts.text("grade.limits"))
    found = [path for file in files for path in _notebooks(Path(file))]
    if not found:
        raise LabkitError(texts.text("grade.nothing"))
    if run_notebook:
        print(texts.text("grade.patience"), file=sys.stderr, flush=True)
    gib = memory or min(MEMORY, psutil.virtual_memory().total * 0.75 / GIB)
    grades: list[Grade] = []
    with Workers(
        seconds=timeout or EXERCISE_SECONDS,
        memory=int(min(gib, EXERCISE_MEMORY) * GIB),
        forbidden={path.resolve() for path in found},
    ) as workers:
        # Every verdict first: a notebook that runs could change a file that is still to be graded.
        judged = []
        for path in found:
            judged.append(judge_file(path, workers))
            if style == "text":
                say(report.as_text(judged[-1][1]))
    for number, (path, (submission, outcome)) in enumerate(zip(found, judged, strict=True), 1):
        if sys.stderr.isatty():
            said = texts.text("grade.progress", number=number, all=len(found), file=path.name)
            print(said, file=sys.stderr)
        if submission is not None and run_notebook:
            ran = _run(submission, seconds=timeout or CELL_SECONDS, memory=gib)
            outcome = replace(outcome, run=ran)
            if style == "text":
                say(report.run_as_text(outcome, ran))
        grades.append(outcome)
    if style != "text":
        say(report.as_json(grades) if style == "json" else report.as_csv(grades).rstrip("\n"))
    elif len(grades) > 1:
        passed = sum(outcome.code == report.ALL_PASSED for outcome in grades)
        say(texts.text("grade.summary", passed=passed, all=len(grades)))
    return report.exit_code(grades)


def judge_file(path: Path, workers: Workers) -> tuple[notebook.Submission | None, Grade]:
    """What is in a file, None when it cannot be read, and its verdicts.

    Nothing about the file makes this raise: what is wrong with it is said in the grade.
    """
    try:
        submission = notebook.read(path)
        verdicts = tuple(
            judge(workers, exercises.find(name), job, untouched=name in submission.untouched)
            for name, job in submission.jobs.items()
        )
    except LabkitError as error:
        return None, Grade(path, error=str(error))
    except Exception as error:  # a class of 25 is graded to the end, whatever one file holds
        said = texts.text("grade.broke", kind=type(error).__name__, message=str(error))
        return None, Grade(path, error=said)
    return submission, Grade(path, submission.notebook, verdicts)


def _run(submission: notebook.Submission, *, seconds: float, memory: float) -> Run:
    """The notebook's run; one that breaks does not take the verdicts down."""
    try:
        return run(submission, seconds=seconds, memory=int(memory * GIB))
    except Exception as error:
        said = texts.text("grade.run_broke", kind=type(error).__name__, message=str(error))
        return Run(False, said, possible=False)


def _notebooks(path: Path) -> list[Path]:
    """The notebooks in a folder and below, without Jupyter's own copies; a file as it is."""
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.rglob("*.ipynb") if ".ipynb_checkpoints" not in file.parts)
