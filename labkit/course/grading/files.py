"""`labkit grade`: from files to a report and an exit code."""

import sys
from collections.abc import Callable, Sequence
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


def grade(
    files: Sequence[Path],
    *,
    style: str = "text",
    timeout: float | None = None,
    memory: float | None = None,
    run_notebook: bool = True,
    say: Callable[[str], Any] = print,
) -> int:
    """Grade notebooks and print what they earned.

    Args:
        files: notebooks, or folders of them.
        style: "text", "json" or "csv".
        timeout: seconds for one cell of the run, and for one exercise (default 120 and 30).
        memory: GiB for the run, and at most that for one exercise (default 8, or less on a small machine, and 2).
        run_notebook: also run each notebook from top to bottom; without it only the exercises are graded.
        say: gets the report.

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
    gib = memory or min(MEMORY, psutil.virtual_memory().total * 0.75 / GIB)
    grades = []
    with Workers(
        seconds=timeout or EXERCISE_SECONDS,
        memory=int(min(gib, EXERCISE_MEMORY) * GIB),
        forbidden={path.resolve() for path in found},
    ) as workers:
        for number, path in enumerate(found, 1):
            if sys.stderr.isatty():
                print(
                    texts.text("grade.progress", number=number, all=len(found), file=path.name),
                    file=sys.stderr,
                )
            outcome = grade_file(
                path, workers, seconds=timeout or CELL_SECONDS, memory=gib, run_notebook=run_notebook
            )
            grades.append(outcome)
            if style == "text":
                say(report.as_text(outcome))
    if style != "text":
        say(report.as_json(grades) if style == "json" else report.as_csv(grades).rstrip("\n"))
    elif len(grades) > 1:
        passed = sum(outcome.code == report.ALL_PASSED for outcome in grades)
        say(texts.text("grade.summary", passed=passed, all=len(grades)))
    return report.exit_code(grades)


def grade_file(
    path: Path,
    workers: Workers,
    *,
    seconds: float = CELL_SECONDS,
    memory: float = MEMORY,
    run_notebook: bool = True,
) -> Grade:
    """One file's grade. Nothing about the file makes this raise: what is wrong with it is said in the grade."""
    try:
        submission = notebook.read(path)
        verdicts = tuple(
            judge(workers, exercises.find(name), job, untouched=name in submission.untouched)
            for name, job in submission.jobs.items()
        )
    except LabkitError as error:
        return Grade(path, error=str(error))
    except Exception as error:  # a class of 25 is graded to the end, whatever one file holds
        return Grade(path, error=texts.text("grade.broke", kind=type(error).__name__, message=str(error)))
    if not run_notebook:
        return Grade(path, submission.notebook, verdicts)
    try:
        ran = run(submission, seconds=seconds, memory=int(memory * GIB))
    except Exception as error:  # nor does a run that breaks take the verdicts down
        said = texts.text("grade.run_broke", kind=type(error).__name__, message=str(error))
        ran = Run(False, said, possible=False)
    return Grade(path, submission.notebook, verdicts, ran)


def _notebooks(path: Path) -> list[Path]:
    """The notebooks in a folder and below, without Jupyter's own copies; a file as it is."""
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.rglob("*.ipynb") if ".ipynb_checkpoints" not in file.parts)
