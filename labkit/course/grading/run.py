"""Run a learner's notebook from top to bottom, in a fresh process and away from anyone's files, and say how it went."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import psutil

from labkit.course import texts
from labkit.course.grading.cells import Cell
from labkit.course.grading.confine import adopt_orphans, end_children
from labkit.course.grading.notebook import Submission
from labkit.course.grading.workers import GIB

SCRIPT = Path(__file__).with_name("nbval_script.py")
TICK = 0.2  # seconds between two looks at the run's memory
# As nbval_script.py notes them.
STATES = ("running", "ran", "raised", "too long", "died", "exit", "no kernel")
# Whatever writes files by itself does so in the run's folder, the only one that may be open.
PLACES = {
    "LABKIT_WORK": "work",
    "IPYTHONDIR": "ipython",
    "JUPYTER_RUNTIME_DIR": "jupyter",
    "MPLCONFIGDIR": "matplotlib",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), "tmp"),
}
CELLS = 10  # the whole notebook may take this many times what one cell may


@dataclass(frozen=True)
class Run:
    """How a run went. `finished`: every cell ran, checks that reported a wrong answer included."""

    finished: bool
    message: str
    seconds: float = 0.0
    possible: bool = True  # False: no kernel could be started


def run(submission: Submission, *, seconds: float, memory: int) -> Run:
    """Run the submission's copy.

    Args:
        submission: what to run.
        seconds: limit for one cell; the notebook has ten times that.
        memory: bytes that the kernel, and whatever it starts, may use.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="labkit-grade-", ignore_cleanup_errors=True) as name:
        folder, notes = Path(name) / "run", Path(name) / "notes.jsonl"
        folder.mkdir()
        (folder / "pytest.ini").touch()
        nbformat.write(submission.copy, folder / "notebook.ipynb")
        command = [sys.executable, str(SCRIPT), "notebook.ipynb", str(notes), f"{seconds:g}"]
        (folder / "tmp").mkdir()
        own = {variable: str(folder / place) for variable, place in PLACES.items()}
        environment = {**os.environ, **own, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
        stopped = _supervise(command, folder, environment, began + CELLS * seconds, memory)
        events = _events(notes, len(submission.cells))
    took = time.monotonic() - began
    if stopped:
        limit = {"gib": f"{memory / GIB:.3g}", "seconds": f"{CELLS * seconds:g}"}
        said = texts.text(f"grade.run_{stopped}", **limit)
        return Run(False, _in_words(events, submission.cells, said), took)
    return _outcome(events, submission.cells, seconds, took)


def _supervise(
    command: Sequence[str], folder: Path, environment: dict[str, str], deadline: float, limit: int
) -> str:
    """Have the run happen, and end it when it goes too far: "" or the name of the limit it reached."""
    own = psutil.Process()
    others = {child.pid for child in own.children()}
    family: set[psutil.Process] = set()
    null = subprocess.DEVNULL
    reached = ""
    adopt_orphans()
    try:
        process = psutil.Popen(command, cwd=folder, env=environment, stdin=null, stdout=null, stderr=null)
        while not reached and process.poll() is None:
            time.sleep(TICK)
            # An orphan of the run has become this process's own child, where the system can do that.
            for child in own.children():
                if child.pid not in others:
                    family |= {child, *(_tolerant(child.children, recursive=True) or ())}
            used = sum(memory.rss for member in family if (memory := _tolerant(member.memory_info)))
            reached = "memory" if used > limit else "time" if time.monotonic() > deadline else ""
    finally:
        for member in family:  # whatever the notebook has left running goes as well
            _tolerant(member.kill)
        end_children(others)
        adopt_orphans(False)
    return reached


def _tolerant(ask: Callable[..., Any], **options: Any) -> Any:
    """What a process says, or None when it has just ended."""
    try:
        return ask(**options)
    except psutil.Error:
        return None


def _events(notes: Path, cells: int) -> list[dict[str, Any]]:
    """The notes about cells, without lines that are cut off, or that the notebook may have written itself."""
    found = []
    for line in notes.read_text(encoding="utf-8", errors="replace").splitlines() if notes.exists() else ():
        try:
            event = json.loads(line)
            if event["state"] in STATES and 0 <= event["cell"] < cells:
                found.append({"kind": "", "message": "", **event})
        except (ValueError, TypeError, KeyError):
            continue
    return found


def _outcome(events: Sequence[dict[str, Any]], cells: Sequence[Cell], seconds: float, took: float) -> Run:
    for event in events:
        state = event["state"]
        if state == "no kernel":
            said = texts.text("grade.run_no_kernel", message=event["message"])
            return Run(False, said, took, possible=False)
        checks = cells[event["cell"]].role == "check"
        if state in ("ran", "running") or (state == "raised" and checks):
            continue
        key = "input" if event["kind"] == "StdinNotImplementedError" else state.replace(" ", "_")
        fields = {"kind": event["kind"], "message": event["message"], "seconds": f"{seconds:g}"}
        said = texts.text(f"grade.run_{key}", **fields)
        return Run(False, _in_words([event], cells, said), took)
    ended = [event for event in events if event["state"] != "running"]
    if events and events[-1]["state"] == "running":  # it ended the process that runs the notebook
        return Run(False, _in_words(events, cells, texts.text("grade.run_died")), took)
    if len(ended) < len(cells):
        return Run(False, texts.text("grade.run_lost"), took, possible=False)
    return Run(True, texts.text("grade.run_finished", seconds=f"{took:.0f}"), took)


def _in_words(events: Sequence[dict[str, Any]], cells: Sequence[Cell], said: str) -> str:
    """Which cell it was, and what became of it."""
    if not events:
        return said
    number = events[-1]["cell"]
    cell = cells[number]
    first = next((line.strip() for line in cell.source.splitlines() if line.strip()), "")
    what = texts.text(f"grade.cell_{cell.role or 'plain'}", name=cell.exercise, first=first[:60])
    return texts.text("grade.cell", number=number + 1, all=len(cells), what=what, said=said)
