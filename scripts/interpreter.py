"""Choose the Python that the course runs on: 3.11 to 3.13, with a working venv module.

Runs on any Python from 3.8 on, because its first job is to tell an unsuitable one so.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Callable, Iterator, NamedTuple, Optional

OLDEST, NEWEST = (3, 11), (3, 13)
RANGE = f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
PROBE = """
import json, sys
try:
    import ensurepip, venv
    can = True
except ImportError:
    can = False
base = getattr(sys, "_base_executable", None) or sys.executable
print(json.dumps([base, list(sys.version_info[:3]), can]))
"""


class Stop(Exception):
    """Set-up cannot go on; the text says why and what would help."""


class Python(NamedTuple):
    """An interpreter: its path, its version, and whether it can make a virtual environment."""

    path: str
    version: tuple
    can_venv: bool

    @property
    def fits(self) -> bool:
        """True for the versions that the course is tested on."""
        return OLDEST <= self.version[:2] <= NEWEST

    @property
    def release(self) -> str:
        """The version as people write it, such as 3.12.1."""
        return ".".join(map(str, self.version))


def probe(command: list) -> Optional[Python]:
    """What stands behind a command, or None when it does not run. Of a virtual environment: its base."""
    try:
        done = subprocess.run([*command, "-c", PROBE], capture_output=True, text=True, timeout=30)
        path, version, can_venv = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return Python(path, tuple(version), can_venv)


def candidates() -> Iterator[list]:
    """Commands worth trying, the running interpreter first."""
    yield [sys.executable]
    minors = range(NEWEST[1], OLDEST[1] - 1, -1)
    if os.name == "nt" and shutil.which("py"):
        yield from (["py", f"-3.{minor}"] for minor in minors)
    yield from ([f"python3.{minor}"] for minor in minors)
    yield from (["python3"], ["python"])


def choose(wanted: str = "", look: Callable = probe, names: Callable = candidates) -> Python:
    """The interpreter to build .venv with.

    Args:
        wanted: a command or path (the variable PYTHON); empty means: find one.

    Raises:
        Stop: none fits; the text lists what was found.
    """
    if wanted:
        found = look([str(Path(wanted).expanduser())])
        if found is None:
            raise Stop(f"PYTHON={wanted} does not run. Give the path of a Python {RANGE}.")
        if not found.fits:
            raise Stop(f"PYTHON={wanted} is Python {found.release}; the course needs {RANGE}.")
        return _with_venv(found)
    seen = []
    for command in names():
        found = look(command)
        if found and found.fits and found.can_venv:
            return found
        if found and found not in seen:
            seen.append(found)
    fitting = [python for python in seen if python.fits]
    if fitting:
        return _with_venv(fitting[0])
    listed = ", ".join(f"{python.release} ({python.path})" for python in seen) or "none"
    raise Stop(
        f"The course needs Python {RANGE}; found: {listed}.\n"
        "Install one (python.org, your package manager, pyenv or conda), or point at it: "
        "make lab PYTHON=/path/to/python3.12"
    )


def _with_venv(python: Python) -> Python:
    if not python.can_venv:
        raise Stop(
            f"{python.path} cannot make virtual environments (its venv or ensurepip module is missing).\n"
            f"On Debian and Ubuntu: sudo apt-get install python{python.version[0]}.{python.version[1]}-venv"
        )
    return python
