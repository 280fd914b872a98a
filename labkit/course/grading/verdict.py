"""One exercise's verdict: its check runs here, on a stand-in that calls the learner's function in its process."""

import random
import time
from dataclasses import dataclass

from labkit.course import texts
from labkit.course.checks import available
from labkit.course.exercise import AnswerRaised, CheckFailed, Exercise, NotAttempted, Wrong
from labkit.course.grading.session import Ended, Job, Session
from labkit.course.grading.workers import Workers
from labkit.course.verify import verify

PASSED, FAILED, OPEN, UNVERIFIED = "passed", "failed", "not attempted", "not verified"
SEEDS = 2  # fresh random inputs for every grading


@dataclass(frozen=True)
class Verdict:
    """What one exercise earned, and why. `status` is one of the four above; `message` is empty when it passed."""

    exercise: Exercise
    status: str
    message: str = ""
    seconds: float = 0.0

    @property
    def points(self) -> int:
        return self.exercise.points if self.status == PASSED else 0


def judge(
    workers: Workers, exercise: Exercise, job: Job | None, *, untouched: bool = False, seeds: int = SEEDS
) -> Verdict:
    """Check one answer on fresh random inputs.

    Args:
        workers: where the learner's process comes from.
        exercise: what to check against.
        job: the answer; None when its cell is gone.
        untouched: whether the answer is still the stub (its check cannot tell on a machine without what it needs).
        seeds: how many times the check runs.
    """
    if job is None:
        return Verdict(exercise, OPEN, texts.text("grade.deleted", name=exercise.name))
    if not available(exercise.needs):
        if untouched:
            return Verdict(exercise, OPEN)
        return Verdict(
            exercise, UNVERIFIED, texts.text("grade.needs", needs=", ".join(sorted(exercise.needs)))
        )
    began = time.perf_counter()
    status, message = _outcome(workers, exercise, job, seeds)
    return Verdict(exercise, status, message, time.perf_counter() - began)


def _outcome(workers: Workers, exercise: Exercise, job: Job, seeds: int) -> tuple[str, str]:
    try:
        session = Session(workers, job, limit_memory="cuda" not in exercise.needs)
    except AnswerRaised as raised:
        said = texts.text("grade.cell_raised", kind=raised.kind, message=raised.message)
        return FAILED, "\n".join([said, *raised.lines])
    except Wrong as wrong:
        return FAILED, texts.failure(exercise.notebook, exercise.name, wrong.key, wrong.fields)
    except Ended as ended:
        return FAILED, str(ended)
    with session:
        status, message = PASSED, ""
        try:
            for _ in range(seeds):
                verify(exercise, session.call, random.SystemRandom().randrange(100_000))
        except NotAttempted:
            status = OPEN
        except CheckFailed as failed:
            status, message = FAILED, _body(failed)
        except Exception as error:  # the check's own fault: it says nothing about the answer
            status, message = (
                UNVERIFIED,
                texts.text("grade.stumbled", kind=type(error).__name__, message=str(error)),
            )
        # Whatever a check made of calls that found no process any more, the process's end is the outcome.
        return (FAILED, session.ended) if session.ended else (status, message)


def _body(failed: CheckFailed) -> str:
    """The failure's text without its first line, which names the exercise as the report does already."""
    return "\n".join(line.removeprefix("  ") for line in failed.text.splitlines()[1:])
