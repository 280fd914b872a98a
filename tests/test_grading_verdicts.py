"""Verdicts: what is right passes, and nothing else does: no cheat earns a point, no accident costs a neighbour one."""

import ctypes
import os
import sys
from pathlib import Path

import pytest
from grading_helpers import RIGHT, answered, find, given, home, insert, marks, message, solved, statuses, workers  # noqa: F401

from labkit.course.grading.session import Ended, Job, Session
from labkit.course.grading.workers import FORKS, GIB, Workers

ALL = dict.fromkeys(RIGHT, "passed")


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
    insert(notebook, "spread", "from labkit import load\nlm = load()\nONE = 1.0\ndef gap(v):\n    return statistics.fmean([max(v) - min(v)]) if v else 0.0")
    setup = next(cell for cell in notebook.cells if "import math" in cell.source)
    setup.source += "\nimport statistics"
    assert statuses(marks(notebook, tmp_path, workers)) == ALL
    below = insert(answered(spread="def spread(values):\n    return gap(values)"), "centred", RIGHT["spread"].replace("spread", "gap"))
    grade = marks(below, tmp_path, workers)
    assert statuses(grade)["spread"] == "failed" and "NameError" in message(grade, "spread")


CHEATS = {
    "replaces check": "class Yes:\n    def __getattr__(self, name):\n        return lambda f: print('✓ spread: right.')\ncheck = Yes()\nspread = None",
    "prints the pass line": "print('✓ spread: right.')\ndef spread(values):\n    print('✓ spread: right.')",
    "patches labkit": "import labkit.course.verify\nlabkit.course.verify.verify = lambda *a: None\ndef spread(v): return 0.0",
    "imports the reference": "from labkit.course import exercises\nspread = exercises.find('spread').reference",
    "imports the reference quietly": "import importlib\ndef spread(v):\n    return importlib.import_module('labkit.course.exercises').find('spread').reference(v)",
    "finds the reference by its loader": "import importlib.util\ndef spread(v):\n    s = importlib.util.spec_from_file_location('x', {demo!r} + '/grading_exercises.py')\n    m = importlib.util.module_from_spec(s)\n    s.loader.exec_module(m)\n    return m.spread(v)",
    "leaves by exit": "import sys\nprint('passed')\nsys.exit(0)",
    "leaves by exit inside": "import os\ndef spread(values):\n    os._exit(0)",
    "leaves by atexit": "import atexit, os\natexit.register(os._exit, 0)\ndef spread(values):\n    raise SystemExit(0)",
    "overrides the builtins": "import builtins\nbuiltins.isinstance = lambda *a: True\nbuiltins.max = builtins.min = lambda *a: 0\n__builtins__ = {{}}\ndef spread(values):\n    return 0.0",
    "equals everything": "class Yes(float):\n    __eq__ = lambda a, b: True\n    __float__ = lambda a: 1.0\n    __hash__ = float.__hash__\n    __sub__ = __rsub__ = lambda a, b: 0.0\ndef spread(values):\n    return Yes()",
    "equals everything, no number": "class Yes:\n    __eq__ = lambda a, b: True\ndef spread(values):\n    return Yes()",
    "forges a verdict": "import os\nfor fd in range(3, 64):\n    try:\n        os.write(fd, b'passed' * 50)\n    except OSError:\n        pass\ndef spread(values):\n    return 0.0",
    "forges messages": "import sys\ndef spread(values):\n    frame = sys._getframe()\n    while frame.f_back:\n        frame = frame.f_back\n        child = frame.f_locals.get('self')\n        if hasattr(child, 'outgoing'):\n            w = frame.f_globals['wire']\n            for m in [('passed',), ('verdict', True), ('returned', True)]:\n                w.write(child.outgoing, w.pack(m))\n    return 0.0",
    "hangs up": "import os\ndef spread(values):\n    os.closerange(3, 256)\n    while True: pass",
    "returns a generator": "def spread(values):\n    yield 0.0",
    "answers from a thread": "import threading\ndef spread(values):\n    threading.Thread(target=lambda: [None for _ in iter(int, 1)], daemon=True).start()",
    "starts a process": "import subprocess, sys\ndef spread(values):\n    return float(subprocess.check_output([sys.executable, '-c', 'print(1)']))",
    "forks": "import os\ndef spread(values):\n    os.fork()\n    return 0.0",
    "kills its parent": "import os\ndef spread(values):\n    os.kill(os.getppid(), 9)\n    return 0.0",
    "asks the network": "import urllib.request\ndef spread(values):\n    return float(urllib.request.urlopen('http://127.0.0.1:1/').read())",
    "looks for labkit in memory": "import gc\ndef spread(values):\n    return [o for o in gc.get_objects() if getattr(o, '__name__', '') == 'spread'][-1](values)",
    "hard-codes the example": "def spread(values):\n    return 1.5",
}  # fmt: skip


@pytest.mark.parametrize("cheat", CHEATS)
def test_cheats_earn_nothing_and_cost_nothing(cheat: str, tmp_path: Path, workers: Workers) -> None:
    from grading_helpers import DEMO

    grade = marks(answered(spread=CHEATS[cheat].replace("{demo!r}", repr(str(DEMO))).replace("{{}}", "{}")), tmp_path, workers)
    assert statuses(grade) == {**ALL, "spread": "failed"}, message(grade, "spread")
    assert message(grade, "spread") and grade.code == 1


SOURCES = {
    "open": "open({path!r}).read()",
    "os.open": "os.read(os.open({path!r}, os.O_RDONLY), 9999)",
    "pathlib": "pathlib.Path({path!r}).read_text()",
    "through a link": "(os.symlink({path!r}, 'link'), open('link').read())",
    "up and down": "open(os.path.relpath({path!r})).read()",
    "linecache": "linecache.getlines({path!r})[0]",
    "runpy": "runpy.run_path({path!r})",
    "numpy": "numpy.fromfile({path!r}, dtype='u1')",
    "torch": "torch.from_file({path!r}, size=9, dtype=torch.uint8)",
    "shell": "os.popen('cat ' + {path!r}).read()",
    "listing": "os.listdir(os.path.dirname({path!r}))[0]",
    "descriptor": "os.read(os.open(os.path.basename({path!r}), os.O_RDONLY, dir_fd=os.open(os.path.dirname({path!r}), os.O_RDONLY)), 99)",
    "the grader's memory": "open(f'/proc/{{os.getppid()}}/maps').read()",
}  # fmt: skip


@pytest.mark.parametrize("route", SOURCES)
def test_the_courses_files_are_closed(route: str, home: Path, workers: Workers) -> None:  # noqa: F811
    path = str(home / "solutions" / "91_grading.py")
    text = SOURCES[route].replace("{path!r}", repr(path)).replace("{{", "{").replace("}}", "}")
    modules = "import linecache, numpy, os, pathlib, runpy, torch\n"
    job = Job("steal", f"{modules}def steal():\n    try:\n        return ('got', str({text}))\n    except BaseException as e:\n        return ('refused', str(e))")
    with Session(workers, job) as session:
        outcome, said = session.call()
    if route == "torch" and not _kernel_closes_files():
        pytest.skip("only the kernel's Landlock sees this route")
    assert outcome == "refused" and "<built-in" not in said


def _kernel_closes_files() -> bool:
    return sys.platform == "linux" and ctypes.CDLL(None).syscall(444, None, 0, 1) >= 1


def test_its_own_folder_is_open_and_goes(workers: Workers) -> None:
    text = "import os, tempfile\ndef f():\n    with open('mine.txt', 'w') as file:\n        file.write('kept')\n    with tempfile.TemporaryFile() as file:\n        file.write(b'x')\n    os.mkdir('d')\n    return os.getcwd(), open('mine.txt').read()"
    with Session(workers, Job("f", text)) as session:
        folder, content = session.call()
        assert content == "kept" and Path(folder).is_dir()
    assert not Path(folder).exists()
    with Session(workers, Job("f", f"def f():\n    open({os.path.join(folder, '..', 'outside.txt')!r}, 'w')")) as session, pytest.raises(Exception, match="only the current folder"):
        session.call()


ACCIDENTS = {
    "infinite loop": ("def spread(values):\n    while True: pass", "still running after"),
    "infinite loop in the cell": ("while True: pass", "still running after"),
    "waits": ("import time\ndef spread(values):\n    time.sleep(999)", "still running after"),
    "exit": ("def spread(values):\n    exit()", "SystemExit"),
    "quit in the cell": ("quit()", "SystemExit"),
    "input": ("def spread(values):\n    return float(input('?'))", "input() waits"),
    "memory bomb": ("def spread(values):\n    a = [b'x' * 1000000]\n    while True: a += [bytes(bytearray(a[0])) for _ in range(20)]", "may use 1 GiB"),
    "one huge tensor": ("import torch\ndef spread(values):\n    return torch.zeros(10**10).sum().item()", "allocate"),
    "huge output": ("def spread(values):\n    print('x' * 10**8)\n    for _ in range(10**5): print('y' * 100)", "you gave None"),
    "huge return": ("import torch\ndef spread(values):\n    return torch.zeros(2 * 10**7)", "bytes; the limit"),
    "recursion": ("def spread(values):\n    return spread(values)", "RecursionError"),
    "crash": ("import faulthandler\ndef spread(values):\n    faulthandler._sigsegv()", "crashed"),
    "syntax error": ("def spread(values)\n    return 1", "SyntaxError"),
    "nothing there": ("", "does not define spread"),
    "another name": ("def spraed(values):\n    return 0.0", "does not define spread"),
    "other arguments": ("def spread():\n    return 0.0", "takes other arguments"),
    "no number": ("spread = 3", "does not define spread"),
    "strange exception": ("class E(BaseException):\n    def __str__(self): raise self\ndef spread(values):\n    raise E", "E"),
    "returns a set": ("def spread(values):\n    return {1}", "a set"),
    "returns none": ("def spread(values):\n    max(values)", ""),
    "nested for ever": ("def spread(values):\n    a = []\n    a.append(a)\n    return a", "nested"),
    "undefined name": ("def spread(values):\n    return nump.ptp(values)", "nump"),
}  # fmt: skip


@pytest.mark.parametrize("accident", ACCIDENTS)
def test_accidents_cost_that_exercise_only_and_are_said(accident: str, tmp_path: Path, home: Path) -> None:  # noqa: F811
    text, said = ACCIDENTS[accident]
    notebook = answered()
    find(notebook, "spread").source = text
    with_limits = _quick_workers(home)
    grade = marks(notebook, tmp_path, with_limits)
    assert statuses(grade) == {**ALL, "spread": "failed"}
    assert said in message(grade, "spread")


_shared: list[Workers] = []


def _quick_workers(folder: Path) -> Workers:
    if not _shared:
        _shared.append(Workers(seconds=2, memory=GIB, forbidden=[folder]))
    return _shared[0]


def teardown_module() -> None:
    for shared in _shared:
        shared.__exit__()
    _shared.clear()


def test_later_cells_do_not_change_a_grade(tmp_path: Path, workers: Workers) -> None:
    notebook = insert(answered(), "", "def spread(values):\n    return 'wrong'\n\ncentred = None")
    assert statuses(marks(notebook, tmp_path, workers)) == ALL
    notebook = insert(answered(spread="def spread(values):\n    return 1.5"), "", RIGHT["spread"])
    assert statuses(marks(notebook, tmp_path, workers))["spread"] == "failed"


def test_one_answers_state_never_reaches_another(tmp_path: Path, workers: Workers) -> None:
    poison = "import torch, builtins\ntorch.Tensor.mean = None\ntorch.allclose = lambda *a, **k: True\nbuiltins.max = None\ndef spread(values):\n    return 1.5"
    assert statuses(marks(answered(spread=poison), tmp_path, workers)) == {**ALL, "spread": "failed"}


def test_callbacks_raise_across_and_a_verdict_cannot_be_swallowed(workers: Workers) -> None:
    from labkit.course.exercise import AnswerRaised, Wrong

    def fails(number: int) -> None:
        raise ZeroDivisionError(f"no {number}")

    def judges() -> None:
        raise Wrong("key")

    with Session(workers, Job("f", "def f(call, *a):\n    try:\n        return call(*a)\n    except ZeroDivisionError as e:\n        return str(e)")) as session:
        assert session.call(fails, 7) == "no 7"
        assert session.call(lambda *numbers: sum(numbers), 1, 2) == 3
    with Session(workers, Job("f", "def f(call):\n    call(3)")) as session, pytest.raises(AnswerRaised, match="ZeroDivisionError: no 3"):
        session.call(fails)
    with Session(workers, Job("f", "def f(call):\n    try:\n        call()\n    except BaseException:\n        return 1")) as session, pytest.raises(Wrong):
        session.call(judges)


def test_nothing_is_left_running(workers: Workers) -> None:
    import psutil

    text = "import threading, time\nthreading.Thread(target=time.sleep, args=(99,)).start()\ndef f():\n    return 1"
    with Session(workers, Job("f", text)) as session:
        assert session.call() == 1
        pid = session._process.pid
        assert psutil.pid_exists(pid)
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
