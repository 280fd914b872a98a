"""Running a learner's notebook from top to bottom: how far it came and why it stopped, in words, whatever happens."""

import json
import os
import sys
import time
from pathlib import Path

import psutil
import pytest
from grading_helpers import answered, find, given, insert, landlock_version, save
from nbformat import NotebookNode

from labkit.course.grading import notebook
from labkit.course.grading.files import grade
from labkit.course.grading.run import Run, run
from labkit.course.grading.workers import GIB

pytest_plugins = ["grading_home"]

OWN = "# mine\n"
STUBBORN = "while True:\n    try:\n        while True: pass\n    except KeyboardInterrupt: pass"
ACCIDENTS = {
    "error": ("1 / 0", "stopped with ZeroDivisionError: division by zero"),
    "infinite loop": ("while True: pass", "ran for more than 8 s"),
    "exit": ("exit()", "called exit()"),
    "kernel killed": ("import os\nos.kill(os.getpid(), 9)", "ended the kernel"),
    "os._exit": ("import os\nos._exit(0)", "ended the kernel"),
    "input": ("input('your name? ')", "asks for input"),
    "memory bomb": ("a = []\nwhile True: a.append(bytearray(10**7))", "used more than 1.5 GiB"),
    "syntax error": ("for", "stopped with SyntaxError"),
    "ignores interrupts": (STUBBORN, "ran for more than 8 s"),
}  # fmt: skip


def ran(handed_in: NotebookNode, folder: Path, seconds: float = 60.0, memory: float = 4.0) -> Run:
    return run(notebook.read(save(handed_in, folder)), seconds=seconds, memory=int(memory * GIB))


def test_untouched_notebook_runs_and_leaves_no_trace(grading_home: Path, tmp_path: Path) -> None:
    """Its checks fail, which is theirs to do; the learner's own progress is not touched."""
    outcome = ran(given(), tmp_path)
    assert outcome.finished and "from top to bottom" in outcome.message
    assert not (grading_home / "work").exists()


def test_a_stopped_cell_is_named(grading_home: Path, tmp_path: Path) -> None:
    handed_in = insert(answered(), "centred", OWN + "print('hello')\nnumbers[9]")
    outcome = ran(handed_in, tmp_path)
    assert not outcome.finished
    assert "code cell 5 of 10, `# mine`, stopped with IndexError" in outcome.message


@pytest.mark.slow
@pytest.mark.parametrize("accident", ACCIDENTS)
def test_accidents_are_said_and_end(accident: str, grading_home: Path, tmp_path: Path) -> None:
    text, said = ACCIDENTS[accident]
    began = time.monotonic()
    outcome = ran(insert(answered(), "centred", OWN + text), tmp_path, seconds=8.0, memory=1.5)
    assert not outcome.finished and outcome.possible
    assert said in outcome.message and "`# mine`" in outcome.message
    assert time.monotonic() - began < 60


@pytest.mark.slow
def test_total_time_is_limited(grading_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from labkit.course.grading import run as module

    monkeypatch.setattr(module, "CELLS", 1)
    handed_in = answered()
    for _ in range(10):
        insert(handed_in, "centred", "import time\ntime.sleep(6)")
    outcome = ran(handed_in, tmp_path, seconds=20.0)
    assert not outcome.finished and "was running when the notebook's 20 s were over" in outcome.message


@pytest.mark.slow
def test_huge_output_does_not_take_the_report_down(grading_home: Path, tmp_path: Path) -> None:
    text = OWN + "for _ in range(300): print('x' * 10**6)\nfor _ in range(10**5): print('y')"
    outcome = ran(insert(answered(), "centred", text), tmp_path, seconds=60.0)
    assert outcome.finished or "`# mine`" in outcome.message


@pytest.mark.slow
def test_what_the_notebook_started_is_ended(grading_home: Path, tmp_path: Path) -> None:
    mark = f"import time; time.sleep({600 + os.getpid() % 100})"
    text = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {mark!r}])"
    assert ran(insert(answered(), "centred", text), tmp_path).finished
    time.sleep(0.5)
    assert not [p for p in psutil.process_iter(["cmdline"]) if mark in (p.info["cmdline"] or [])]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux hands a notebook's orphans to the grader")
def test_what_the_notebook_detached_is_ended(grading_home: Path, tmp_path: Path) -> None:
    seconds = f"{700 + os.getpid() % 100}.25"
    text = f"import os\nos.system('setsid sleep {seconds} &')"
    assert ran(insert(answered(), "centred", text), tmp_path).finished
    assert not [p for p in psutil.process_iter(["cmdline"]) if seconds in (p.info["cmdline"] or [])]


@pytest.mark.slow
@pytest.mark.skipif(landlock_version() < 6, reason="this kernel does not keep signals in")
def test_a_notebook_that_ends_every_process_above_it_ends_only_its_run(
    grading_home: Path, tmp_path: Path
) -> None:
    text = OWN + "import psutil\nfor parent in psutil.Process().parents():\n    parent.kill()"
    outcome = ran(insert(answered(), "centred", text), tmp_path)
    assert not outcome.finished and outcome.possible and "`# mine`" in outcome.message


@pytest.mark.slow
@pytest.mark.skipif(landlock_version() < 1, reason="this kernel has no Landlock")
def test_a_notebook_writes_to_its_own_folder_only(grading_home: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.txt"
    own = "import os, tempfile\nopen('mine.txt', 'w').close()\ntempfile.TemporaryFile().close()\n"
    assert ran(insert(answered(), "centred", own), tmp_path).finished
    outcome = ran(insert(answered(), "centred", f"open({str(outside)!r}, 'w')"), tmp_path)
    assert "PermissionError" in outcome.message and not outside.exists()


@pytest.mark.slow
def test_a_later_redefinition_and_a_forged_report_change_nothing(grading_home: Path, tmp_path: Path) -> None:
    """The verdict does not come from this run, so a kernel that writes into its folder gains nothing."""
    forged = json.dumps({"cell": 1, "state": "ran"})
    handed_in = answered(spread="def spread(values):\n    return 1.5")
    insert(
        handed_in,
        "centred",
        "try:\n"
        f"    open('../notes.jsonl', 'a').write(({forged!r} + chr(10)) * 3 + '{{}}\\n[1]\\n{{')\n"
        "except PermissionError: pass",
    )
    insert(
        handed_in,
        "",
        "def spread(values):\n    return max(values) - min(values) if values else 0.0\ncheck.spread(spread)",
    )
    reports: list[str] = []
    assert grade([save(handed_in, tmp_path)], style="json", say=reports.append) == 1
    (found,) = json.loads(reports[0])
    assert [row["status"] for row in found["exercises"]] == ["failed", "passed", "passed"]
    assert found["points"] == 4 and found["run"]["finished"]


@pytest.mark.slow
def test_a_notebook_that_runs_changes_nobodys_grade(grading_home: Path, tmp_path: Path) -> None:
    """It could hand in somebody else's work in its neighbour's name."""
    neighbour = save(given(), tmp_path, "b.ipynb")
    better = save(answered(), tmp_path / "elsewhere", "better.ipynb")
    copies = f"import shutil\ntry: shutil.copy({str(better)!r}, {str(neighbour)!r})\nexcept OSError: pass"
    first = save(insert(given(), "spread", copies), tmp_path, "a.ipynb")
    reports: list[str] = []
    grade([first, neighbour], style="json", say=reports.append)
    changed = neighbour.read_bytes() == better.read_bytes()
    assert changed == (landlock_version() < 1), "the notebook did not run as meant"
    assert [entry["points"] for entry in json.loads(reports[0])] == [0, 0]


@pytest.mark.slow
def test_nbval_runs_a_finished_notebook_directly(grading_home: Path, tmp_path: Path) -> None:
    import subprocess

    handed_in = answered()
    path = save(handed_in, tmp_path)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--nbval-lax",
        "--nbval-current-env",
        str(path),
    ]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True).returncode == 0
    find(handed_in, "spread").source = "def spread(values):\n    return 1.5"
    assert (
        subprocess.run(
            [*command[:-1], str(save(handed_in, tmp_path))], cwd=tmp_path, capture_output=True
        ).returncode
        == 1
    )
