"""Set up the course and run it: what `make` calls, and what Windows calls without make.

    python scripts/setup.py lab [options]        set up, check the machine, open JupyterLab
    python scripts/setup.py install              set up only
    python scripts/setup.py test [options]       set up, check the code, run the tests
    python scripts/setup.py test-slow [options]  set up, run the slow tests
    python scripts/setup.py check                set up, check the code: lint, types, layering, lines per room
    python scripts/setup.py lock [--fresh]       write the lock files again

Variables: TORCH=auto|cpu|cuda (the build of torch), PYTHON=path (which Python), LABKIT_TORCH_INDEX=URL (where
torch comes from). Standard library only: this runs before anything is installed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Iterator

import install
import interpreter
import lock
from install import Environment, Stop

ROOT = Path(__file__).resolve().parent.parent
NOTHING_RAN = 5  # pytest's exit code when it collected no test


def run(place: Environment, *module: str, learner: bool = False) -> int:
    """Run a module of the environment in the course's folder.

    Args:
        learner: keep the LABKIT_* variables; the course's own tests must not depend on a learner's choices.
    """
    environment = {
        key: value for key, value in os.environ.items() if learner or not key.startswith("LABKIT_")
    }
    return subprocess.run([str(place.python), "-m", *module], cwd=ROOT, env=environment).returncode


def lab(place: Environment, arguments: list) -> int:
    """Check the machine until it has passed once since the set-up, then open JupyterLab."""
    stamp = place.stamp()
    if not stamp.get("doctor"):
        passed = run(place, "labkit", "doctor", learner=True) == 0
        place.write_stamp({**stamp, "doctor": passed})
        if not passed:
            print("\nSome of this needs mending, as said above. JupyterLab opens all the same.\n", flush=True)
    with unmoved_by_ctrl_c():
        return run(place, "labkit", "lab", *arguments, learner=True)


@contextlib.contextmanager
def unmoved_by_ctrl_c() -> Iterator[None]:
    """Leave Ctrl-C to the server, which hears it too: it saves its state and ends its kernels before it goes."""
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def check(place: Environment) -> int:
    """What can be said about the code without running it. Every step runs, whatever the others found."""
    layering = "from importlinter.cli import lint_imports_command as main; main(['--no-logo'])"
    codes = {
        "lint (ruff)": run(place, "ruff", "check", "."),
        "types (mypy)": run(place, "mypy"),
        "layering (import-linter)": subprocess.run([str(place.python), "-c", layering], cwd=ROOT).returncode,
        "lines per room": subprocess.run([str(place.python), "scripts/rooms.py"], cwd=ROOT).returncode,
    }
    failed = [step for step, code in codes.items() if code]
    if failed:
        print(f"Failed: {', '.join(failed)}", flush=True)
    return 1 if failed else 0


def tests(place: Environment, which: str, arguments: list) -> int:
    """Run the tests with this marker expression. No test at all is a failure, and is called one."""
    code = run(place, "pytest", "-m", which, *arguments)
    if code == NOTHING_RAN:
        print(f"No test matched ({which}): nothing was tested, so this is not a pass.", flush=True)
    return code


def main(arguments: list) -> int:
    """Do one task; the exit code is the task's own."""
    known = ("lab", "install", "test", "test-slow", "check", "lock")
    if not arguments or arguments[0] not in known:
        print(__doc__)
        return 0 if arguments and arguments[0] in ("-h", "--help", "help") else 2
    task, rest = arguments[0], arguments[1:]
    setting, python = os.environ.get("TORCH", ""), os.environ.get("PYTHON", "")
    place = Environment(ROOT)
    if task == "lock":
        lock.write(ROOT, interpreter.choose(python).path, "--fresh" in rest)
        return 0
    install.ensure(ROOT, setting, python, dev=task in ("test", "test-slow", "check"))
    if task == "lab":
        return lab(place, rest)
    if task == "test":
        checked = check(place)
        return tests(place, "not slow", rest) or checked
    if task == "test-slow":
        return tests(place, "slow", rest)
    return check(place) if task == "check" else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except Stop as stop:
        sys.exit(f"\n{stop}")
    except KeyboardInterrupt:
        sys.exit("\nStopped. Run the same command again to go on.")
