"""Every right and wrong answer in tests/answers/<notebook>/<exercise>/, through the grader and the notebook's check.

A file defines the exercise's function; its first line is a comment that says what is wrong, or how it differs from
labkit's own. Wrong ones must be rejected, and right ones accepted, on every seed, by both ways, with the same words.
"""

import random
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest

from labkit.course import exercises
from labkit.course.checks import available
from labkit.course.exercise import CheckFailed, Exercise
from labkit.course.grading.session import Job, Session
from labkit.course.grading.verdict import FAILED, OPEN, PASSED, UNVERIFIED, judge
from labkit.course.grading.workers import Workers
from labkit.course.verify import Answer, guarded, verify

ANSWERS = Path(__file__).parent / "answers"
SEEDS = 5
EVERY = [exercises.find(name) for name in exercises.names()]
COURSE = [
    exercise for exercise in EVERY if exercise.check.__module__.startswith("labkit.")
]  # no other test's own
FILES = sorted(ANSWERS.glob("*/*/*.py"))
NAMES = [path.relative_to(ANSWERS).with_suffix("").as_posix() for path in FILES]


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with Workers(seconds=20) as shared:
        yield shared


@pytest.mark.parametrize("exercise", COURSE, ids=[exercise.name for exercise in COURSE])
def test_every_exercise_has_answers(exercise: Exercise) -> None:
    folder = ANSWERS / exercise.notebook / exercise.name
    assert len(list(folder.glob("wrong_*.py"))) >= 3, f"{folder} needs three wrong answers"
    assert len(list(folder.glob("right_*.py"))) >= 2, f"{folder} needs two right answers"


def test_every_answer_belongs_to_an_exercise_and_says_what_it_is() -> None:
    known = {(exercise.notebook, exercise.name) for exercise in COURSE}
    for path in FILES:
        assert (path.parent.parent.name, path.parent.name) in known, f"no exercise for {path}"
        assert path.name.startswith(("right_", "wrong_")), f"{path} is neither right_ nor wrong_"
        assert path.read_text(encoding="utf-8").startswith("# "), (
            f"{path} does not say what it is in its first line"
        )


@pytest.mark.parametrize("exercise", COURSE, ids=[exercise.name for exercise in COURSE])
def test_labkits_own_answers_are_right(exercise: Exercise) -> None:
    if not available(exercise.needs):
        pytest.skip(f"needs {', '.join(exercise.needs)}")
    for _ in range(4 * SEEDS):
        verify(exercise, guarded(exercise.reference), random.randrange(100_000))


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_answer(path: Path, workers: Workers) -> None:
    exercise = exercises.find(path.parent.name)
    if not available(exercise.needs):
        pytest.skip(f"needs {', '.join(exercise.needs)}")
    job = Job(exercise.name, path.read_text(encoding="utf-8"))
    seeds = [random.randrange(100_000) for _ in range(SEEDS)]
    with Session(workers, job) as session:
        graded = [_outcome(exercise, session.call, seed) for seed in seeds]
        ended = session.ended
    if path.name.startswith("right_"):
        assert graded == ["right"] * SEEDS, f"rejected, seeds {seeds}: {ended or graded}"
    else:
        assert ended or "right" not in graded, f"accepted, seeds {seeds}: {graded}"
    if not ended:  # what ends a learner's process would end this one as well
        function = runpy.run_path(str(path))[exercise.name]
        assert [_outcome(exercise, guarded(function), seed) for seed in seeds] == graded, f"seeds {seeds}"


def _outcome(exercise: Exercise, answer: Answer, seed: int) -> str:
    """What came of it: "right", or the key of the failure."""
    try:
        verify(exercise, answer, seed)
    except CheckFailed as failed:
        return failed.key
    return "right"


@pytest.mark.parametrize("exercise", COURSE, ids=[exercise.name for exercise in COURSE])
def test_judge_tells_the_four_statuses_apart(exercise: Exercise, workers: Workers) -> None:
    folder = ANSWERS / exercise.notebook / exercise.name
    name = exercise.name
    stub = f"def {name}(*args, **kwargs):\n    raise NotImplementedError()"
    wrong, right = (next(folder.glob(kind)).read_text(encoding="utf-8") for kind in ("wrong_*", "right_*"))
    given = [None, Job(name, stub), Job(name, wrong), Job(name, right)]
    wanted = (
        [OPEN, OPEN, FAILED, PASSED]
        if available(exercise.needs)
        else [OPEN, UNVERIFIED, UNVERIFIED, UNVERIFIED]
    )
    assert [judge(workers, exercise, job).status for job in given] == wanted
