"""Verdicts: what is right passes, and nothing else does: no cheat earns a point, no accident costs a neighbour one."""

import os
from pathlib import Path

import pytest
from grading_helpers import (
    RIGHT,
    answered,
    find,
    gallery,
    given,
    insert,
    landlock_version,
    marks,
    message,
    solved,
    statuses,
)

from labkit.course.exercise import AnswerRaised, Wrong
from labkit.course.grading.session import Ended, Job, Session
from labkit.course.grading.workers import FORKS, GIB, Workers

pytest_plugins = ["grading_home"]

ALL = dict.fromkeys(RIGHT, "passed")


HELPER = "def gap(values):\n    return statistics.fmean([max(values) - min(values)]) if values else 0.0\n"
OWN_FILES = """
import os, tempfile

def f():
    with open('mine.txt', 'w') as file:
        file.write('kept')
    with tempfile.TemporaryFile() as file:
        file.write(b'x')
    os.mkdir('d')
    return os.getcwd(), open('mine.txt').read()
"""
# What audit hooks do not see: a shell's child that outlives its parent, in a session of its own.
DETACHED = """
import os
from _posixsubprocess import fork_exec

def f():
    read, write = os.pipe()
    shell = [b'/bin/sh', b'-c', b'setsid sleep 600 & echo $!']
    fork_exec(
        shell, [b'/bin/sh'], False, (), None, None, -1, -1, -1, write, -1, -1, *os.pipe(), True, True,
        -1, None, None, None, -1, None, False
    )
    return int(os.read(read, 99))
"""
POISON = """
import builtins
import torch

torch.Tensor.mean = None
torch.allclose = lambda *a, **k: True
builtins.max = None

def spread(values):
    return 1.5
"""


def test_solution_full_marks_and_untouched_none(tmp_path: Path, workers: Workers) -> None:
    grade = marks(solved(), tmp_path, workers)
    assert statuses(grade) == ALL and (grade.points, grade.possible, grade.code) == (6, 6, 0)
    grade = marks(given(), tmp_path, workers)
    assert statuses(grade) == dict.fromkeys(RIGHT, "not attempted") and (grade.points, grade.code) == (0, 1)


def test_half_done(tmp_path: Path, workers: Workers) -> None:
    grade = marks(answered(centred="", timed="def timed(work, clock):\n    return 0.0"), tmp_path, workers)
    assert statuses(grade) == {"spread": "passed", "centred": "not attempted", "timed": "failed"}
    assert (grade.points, grade.code) == (2, 1)
    assert "You gave 0.0" in message(grade, "timed") and "seed=" in message(grade, "timed")


def test_neighbouring_cells_of_the_learners_own_count_when_above(tmp_path: Path, workers: Workers) -> None:
    notebook = answered(spread="%time 1 + 1\ndef spread(values):\n    return gap(values) * ONE")
    insert(notebook, "spread", "1 / 0")
    insert(notebook, "spread", "from labkit import load\nlm = load()\nONE = 1.0\n" + HELPER)
    setup = next(cell for cell in notebook.cells if "import math" in cell.source)
    setup.source += "\nimport statistics"
    assert statuses(marks(notebook, tmp_path, workers)) == ALL
    below = insert(
        answered(spread="def spread(values):\n    return gap(values)"),
        "centred",
        RIGHT["spread"].replace("spread", "gap"),
    )
    grade = marks(below, tmp_path, workers)
    assert statuses(grade)["spread"] == "failed" and "NameError" in message(grade, "spread")


def test_own_cells_between_an_answer_and_its_check_count(tmp_path: Path, workers: Workers) -> None:
    notebook = answered(spread="def spread(values):\n    return gap(values) * ONE")
    insert(notebook, "check-spread", "import statistics\n" + HELPER)
    insert(notebook, "check-spread", "ONE = 1.0 if spread else None")
    assert statuses(marks(notebook, tmp_path, workers)) == ALL


CHEATS = gallery("cheats")


@pytest.mark.parametrize("cheat", CHEATS)
def test_cheats_earn_nothing_and_cost_nothing(cheat: str, tmp_path: Path, workers: Workers) -> None:
    grade = marks(answered(spread=CHEATS[cheat]), tmp_path, workers)
    assert statuses(grade) == {**ALL, "spread": "failed"}, message(grade, "spread")
    assert message(grade, "spread") and grade.code == 1


ROUTES = gallery("routes")


@pytest.mark.parametrize("route", ROUTES)
def test_the_courses_files_are_closed(route: str, grading_home: Path, workers: Workers) -> None:
    path = str(grading_home / "solutions" / "91_grading.py")
    with Session(workers, Job("steal", ROUTES[route])) as session:
        outcome, said = _outcome(session, path)
    if route == "torch" and landlock_version() < 1:
        pytest.skip("only the kernel's Landlock sees this route")
    assert outcome == "refused" or said == "[]", said  # linecache says that there is no such file


def _outcome(session: Session, path: str) -> tuple[str, str]:
    try:
        return "got", str(session.call(path))
    except AnswerRaised as raised:
        return "refused" if raised.kind in ("PermissionError", "RuntimeError") else "broken", raised.message


def test_its_own_folder_is_open_and_goes(workers: Workers) -> None:
    with Session(workers, Job("f", OWN_FILES)) as session:
        folder, content = session.call()
        assert content == "kept" and Path(folder).is_dir()
    assert not Path(folder).exists()
    with (
        Session(
            workers, Job("f", f"def f():\n    open({os.path.join(folder, '..', 'outside.txt')!r}, 'w')")
        ) as session,
        pytest.raises(Exception, match="only the current folder"),
    ):
        session.call()


ACCIDENTS = gallery("accidents")


@pytest.mark.parametrize("accident", ACCIDENTS)
def test_accidents_cost_that_exercise_only_and_are_said(
    accident: str, tmp_path: Path, grading_home: Path
) -> None:
    text, said = ACCIDENTS[accident], accident.split(" → ")[1]
    notebook = answered()
    find(notebook, "spread").source = text
    # a busy machine may need seconds to fill half a gigabyte; only what never ends is waited out
    with_limits = _limited_workers(grading_home, 3 if said.startswith("still running") else 30)
    grade = marks(notebook, tmp_path, with_limits)
    assert statuses(grade) == {**ALL, "spread": "failed"}
    assert said in message(grade, "spread")


_shared: dict[float, Workers] = {}


def _limited_workers(folder: Path, seconds: float) -> Workers:
    if seconds not in _shared:
        _shared[seconds] = Workers(seconds=seconds, memory=GIB // 2, forbidden=[folder])
    return _shared[seconds]


def teardown_module() -> None:
    for shared in _shared.values():
        shared.__exit__()
    _shared.clear()


def test_later_cells_do_not_change_a_grade(tmp_path: Path, workers: Workers) -> None:
    notebook = insert(answered(), "", "def spread(values):\n    return 'wrong'\n\ncentred = None")
    assert statuses(marks(notebook, tmp_path, workers)) == ALL
    notebook = insert(answered(spread="def spread(values):\n    return 1.5"), "", RIGHT["spread"])
    assert statuses(marks(notebook, tmp_path, workers))["spread"] == "failed"


def test_one_answers_state_never_reaches_another(tmp_path: Path, workers: Workers) -> None:
    assert statuses(marks(answered(spread=POISON), tmp_path, workers)) == {**ALL, "spread": "failed"}


def test_callbacks_raise_across_and_a_verdict_cannot_be_swallowed(workers: Workers) -> None:
    def fails(number: int) -> None:
        raise ZeroDivisionError(f"no {number}")

    def judges() -> None:
        raise Wrong("key")

    catches = "try:\n        return call(*a)\n    except ZeroDivisionError as e:\n        return str(e)"
    with Session(workers, Job("f", f"def f(call, *a):\n    {catches}")) as session:
        assert session.call(fails, 7) == "no 7"
        assert session.call(lambda *numbers: sum(numbers), 1, 2) == 3
    with (
        Session(workers, Job("f", "def f(call):\n    call(3)")) as session,
        pytest.raises(AnswerRaised, match="ZeroDivisionError: no 3"),
    ):
        session.call(fails)
    with (
        Session(
            workers,
            Job("f", "def f(call):\n    try:\n        call()\n    except BaseException:\n        return 1"),
        ) as session,
        pytest.raises(Wrong),
    ):
        session.call(judges)


def test_nothing_is_left_running(workers: Workers) -> None:
    import psutil

    text = "import threading, time\nthreading.Thread(target=time.sleep, args=(99,)).start()\ndef f():\n    return 1"
    with Session(workers, Job("f", text)) as session:
        assert session.call() == 1
        pid = session._process.pid
        assert psutil.pid_exists(pid)
    assert not psutil.pid_exists(pid)


@pytest.mark.skipif(not FORKS, reason="only Linux hands a process's orphans to the fork server")
def test_a_process_of_its_own_session_is_ended_as_well(workers: Workers) -> None:
    import psutil

    with Session(workers, Job("f", DETACHED)) as session:
        pid = session.call()
        assert psutil.pid_exists(pid)
        with Session(workers, Job("f", "def f(): return 5")) as another:
            assert another.call() == 5
        assert session.call() != pid, "the end of another session ended this one"
    assert not psutil.pid_exists(pid)


def test_a_dead_fork_server_is_replaced() -> None:
    with Workers(seconds=20) as own:
        for _ in range(2):
            with Session(own, Job("f", "def f(): return 5")) as session:
                assert session.call() == 5
            if own._server is not None:
                own._server.kill()
                own._server.wait()


@pytest.mark.skipif(not FORKS, reason="the only way here, so every other test uses it")
def test_processes_started_alone_behave_the_same() -> None:
    with Workers(seconds=20, fork=False) as alone:
        with Session(alone, Job("f", "import torch\ndef f(x, g): return g(x) + torch.ones(2)")) as session:
            assert session.call(1, lambda x: x + 1).tolist() == [3.0, 3.0]
        with pytest.raises(Ended, match="exit code 3"):
            Session(alone, Job("f", "import os\nos._exit(3)"))
