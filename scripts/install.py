"""Make .venv and install the pinned packages once: a stamp remembers what was done.

The stamp holds hashes of the lock files and pyproject.toml, the Python version, the build of torch and the
folder. While they stay the same, a second run does nothing; another Python, another build of torch or a moved
folder starts a fresh .venv; a changed lock is installed over the old one.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Dict, NamedTuple, Optional

import interpreter
import torch_build
from interpreter import Python, Stop

STAMP = "labkit-setup.json"
COURSE, TOOLS = "requirements.lock", "requirements-dev.lock"
PIP = ["--disable-pip-version-check", "--retries", "2"]
# Megabytes to download, summed from the wheels' sizes for Python 3.11 on x86-64 (macOS: arm64) in November 2026.
TORCH_MB = {("linux", "cpu"): 190, ("linux", "cuda"): 2530, ("darwin", "cpu"): 110, ("win32", "cpu"): 120}
REST_MB = {"linux": 400, "darwin": 130, "win32": 180}
TOOLS_MB = {"linux": 95, "darwin": 85, "win32": 75}
DISK_GB = {"cpu": 4, "cuda": 9}  # what a fresh environment takes at most, downloads included


class Plan(NamedTuple):
    """What is to be done: a fresh environment (with which Python) or not, and what to install into it."""

    build: str
    reason: str
    release: str
    fresh: Optional[Python]
    torch: bool
    course: bool
    tools: bool


class Environment:
    """The course's virtual environment: where it is, and what it was made from."""

    def __init__(self, root: Path, system: str = sys.platform) -> None:
        self.root = root
        self.system = system
        self.folder = root / ".venv"
        self.binaries = self.folder / ("Scripts" if os.name == "nt" else "bin")
        self.python = self.binaries / ("python.exe" if os.name == "nt" else "python")

    def stamp(self) -> Dict:
        """What the last complete set-up wrote; empty when there was none."""
        try:
            stamp = json.loads((self.folder / STAMP).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return stamp if isinstance(stamp, dict) and self.python.exists() else {}

    def write_stamp(self, stamp: Dict) -> None:
        """Remember a complete set-up."""
        (self.folder / STAMP).write_text(json.dumps(stamp, indent=1) + "\n", encoding="utf-8")

    def release(self, old: Dict) -> str:
        """The Python version of an environment worth keeping, made for this very folder; empty if there is none."""
        if old:
            return old["python"] if old.get("root") == str(self.root) else ""
        try:
            made_here = str(self.folder) in (self.folder / "pyvenv.cfg").read_text(encoding="utf-8")
        except OSError:
            return ""
        found = interpreter.probe([str(self.python)]) if made_here else None
        return found.release if found and found.fits else ""

    def sources(self) -> Dict:
        """The hashes that stand for what the course is installed from."""
        return {name: digest(self.root / name) for name in (COURSE, "pyproject.toml")}

    def pip_install(self, *arguments: str) -> int:
        """Run pip inside the environment, its words shown."""
        return subprocess.run([str(self.python), "-m", "pip", "install", *PIP, *arguments]).returncode


def digest(path: Path) -> str:
    """The SHA-256 of a text file, the same whatever line ends git wrote."""
    return hashlib.sha256(path.read_bytes().replace(b"\r\n", b"\n")).hexdigest()


def torch_version(root: Path) -> str:
    """The version that requirements.lock pins."""
    found = re.search(r"^torch==(\S+)", (root / COURSE).read_text(encoding="utf-8"), re.MULTILINE)
    if not found:
        raise Stop(f"{COURSE} names no torch: write it again with `make lock`.")
    return found.group(1)


def plan(place: Environment, setting: str, wanted_python: str, dev: bool) -> Plan:
    """Compare what is there with what is asked for.

    Args:
        setting: the variable TORCH; empty keeps what an earlier set-up chose, else means auto.
        wanted_python: the variable PYTHON; empty keeps the environment's own.
        dev: development tools too.
    """
    old = place.stamp()
    choice = torch_build.Choice(old.get("torch", ""), "as before")
    if setting or not choice.build:
        driver = torch_build.driver_version(place.system)
        choice = torch_build.choose(setting or "auto", place.system, driver)
    release = place.release(old)
    if old and old.get("torch") != choice.build:
        release = ""
    python = interpreter.choose(wanted_python) if wanted_python or not release else None
    fresh = python if python and python.release != release else None
    course = bool(fresh) or any(old.get(key) != value for key, value in place.sources().items())
    tools = (dev or TOOLS in old) and (bool(fresh) or old.get(TOOLS) != digest(place.root / TOOLS))
    torch = bool(fresh) or not old
    return Plan(choice.build, choice.reason, fresh.release if fresh else release, fresh, torch, course, tools)


def ensure(root: Path, setting: str, wanted_python: str, dev: bool) -> bool:
    """Bring .venv up to date, saying first what will be downloaded; True when something was installed.

    Raises:
        Stop: with the reason in words.
    """
    place = Environment(root)
    todo = plan(place, setting, wanted_python, dev)
    if not (todo.course or todo.tools):
        return False
    started = time.monotonic()
    announce(place, todo)
    old = place.stamp()
    stamp_file = place.folder / STAMP
    if stamp_file.exists():
        stamp_file.unlink()  # an interrupted set-up must not look complete
    if (
        todo.fresh
        and subprocess.run([todo.fresh.path, "-m", "venv", "--clear", str(place.folder)]).returncode
    ):
        raise Stop(f"{todo.fresh.path} could not make {place.folder}; its reason is above.")
    if todo.course:
        install_course(place, todo.build)
    stamp = {"python": todo.release, "torch": todo.build, "root": str(root), **place.sources()}
    if todo.tools:
        install(place, "-r", str(root / TOOLS), "-c", str(root / COURSE))
        stamp[TOOLS] = digest(root / TOOLS)
    elif TOOLS in old:
        stamp[TOOLS] = old[TOOLS]
    place.write_stamp(stamp)
    print(f"Set-up complete in {time.monotonic() - started:.0f} s.\n", flush=True)
    return True


def announce(place: Environment, todo: Plan) -> None:
    """Say what will be downloaded, how big it is and where it goes; stop if the disk is too full for it."""
    total = 0
    print(f"Setting up the course in {place.folder} with Python {todo.release}", flush=True)
    if todo.torch:
        size = TORCH_MB.get((place.system, todo.build), 0)
        total += size
        print(
            f"  torch {torch_version(place.root)}, {todo.build} build ({todo.reason}): "
            + (f"about {size} MB" if size else "a few GB")
        )
    for needed, what, sizes in (
        (todo.course, "the other pinned packages", REST_MB),
        (todo.tools, "development tools", TOOLS_MB),
    ):
        if needed:
            size = sizes.get(place.system, sizes["linux"])
            total += size
            print(f"  {what}: about {size} MB")
    print(f"  together at most {total} MB to download; what pip has cached is not fetched again", flush=True)
    free, needed_gb = shutil.disk_usage(place.root).free / 1e9, DISK_GB[todo.build]
    if todo.fresh and free < needed_gb:
        raise Stop(
            f"{free:.1f} GB are free here, and a fresh set-up takes up to {needed_gb} GB. Make room first."
        )


def install_course(place: Environment, build: str) -> None:
    """torch first, from the right source, then everything else as locked, then labkit itself in place."""
    version, python = torch_version(place.root), str(place.python)
    source = torch_build.source(build, version, place.system, torch_build.pip_offers(python))
    print(f"  torch from {source.words}", flush=True)
    if place.pip_install("--quiet", "--timeout", "30", *source.arguments):
        raise torch_build.not_found(build, version, source.words)
    install(place, "-r", str(place.root / COURSE))
    install(place, "--no-deps", "--no-build-isolation", "-e", str(place.root))
    torch_build.check_installed(python, build)


def install(place: Environment, *arguments: str) -> None:
    """pip install, or a Stop that says what to do."""
    if place.pip_install("--quiet", *arguments):
        raise Stop(
            "pip could not install what is pinned; its reason is above. Nothing is lost: run it again."
        )
