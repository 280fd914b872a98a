"""Run one notebook with nbval, noting each cell as it begins and ends. A script: NOTEBOOK NOTES CELL_SECONDS.

It stands alone, and adds to nbval what grading needs: a kernel that dies is noticed at once, not after the cell's
time limit, and after a timeout or a death no further cell is tried. NOTES gets one JSON object a line, so that the
grader can tell how far it came even when it has to end this process.
"""

import importlib.util
import json
import os
import sys
import time
from collections.abc import Generator
from pathlib import Path
from queue import Empty
from typing import Any

import nbval.plugin
import pytest
from nbval.kernel import RunningKernel

SHOWN = 1500  # characters of an error's message


class KernelDied(RuntimeError):
    """The kernel's process is gone."""


def watch_the_kernel() -> None:
    """Have every wait for the kernel's reply look at whether it is still there."""
    receive = RunningKernel.get_message

    def get_message(kernel: Any, stream: str, timeout: float | None = None) -> Any:
        until = time.monotonic() + (3600.0 if timeout is None else timeout)
        while True:
            try:
                message = receive(kernel, stream, timeout=max(0.0, min(0.5, until - time.monotonic())))
            except Empty:
                if stream == "shell" and not kernel.is_alive():
                    raise KernelDied from None
                if time.monotonic() >= until:
                    raise
                continue
            if any(entry.get("source") == "ask_exit" for entry in message["content"].get("payload") or ()):
                kernel.asked_to_exit = True
            return message

    RunningKernel.get_message = get_message


def confine() -> None:
    """Where the kernel can, let this process and the notebook's write to the current folder only."""
    spec = importlib.util.spec_from_file_location("confine", Path(__file__).with_name("confine.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.landlock(["/"], [os.getcwd(), "/dev/shm"])  # multiprocessing keeps its locks in /dev/shm


class Notes:
    """A pytest plugin that writes down what becomes of each cell."""

    def __init__(self, path: str) -> None:
        self.file = open(path, "w", encoding="utf-8")

    def write(self, **note: Any) -> None:
        self.file.write(json.dumps(note) + "\n")
        self.file.flush()

    def pytest_runtest_setup(self, item: Any) -> None:
        self.write(cell=item.cell_num, state="running")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: Any, call: Any) -> Generator[None, Any, Any]:
        report = yield
        if call.when == "setup" and call.excinfo is not None:
            self.write(cell=item.cell_num, state="no kernel", message=str(call.excinfo.value)[:SHOWN])
            item.session.shouldstop = "no kernel"
        if call.when == "call":
            state = self.state(item, call.excinfo)
            error: dict[str, Any] = next(
                (out for out in item.test_outputs or () if out["output_type"] == "error"), {}
            )
            message = str(error.get("evalue", call.excinfo.value if call.excinfo else ""))
            self.write(cell=item.cell_num, state=state, kind=error.get("ename", ""), message=message[:SHOWN])
            if state not in ("ran", "raised"):
                item.session.shouldstop = state
        return report

    def state(self, item: Any, excinfo: Any) -> str:
        if getattr(item.parent.kernel, "asked_to_exit", False):
            return "exit"
        if excinfo is None or excinfo.errisinstance(pytest.skip.Exception):
            return "ran"
        if item.parent.timed_out:
            return "too long"
        return "raised" if item.parent.kernel.is_alive() else "died"


def main() -> int:
    notebook, notes, seconds = sys.argv[1:]
    watch_the_kernel()
    plugin = Notes(notes)  # its file lies outside the folder that stays open
    confine()
    options = [
        "--nbval-lax",
        "--nbval-current-env",
        f"--nbval-cell-timeout={seconds}",
        "-q",
        "--color=no",
        "--tb=no",
    ]
    options += ["-p", "no:cacheprovider", "-c", "pytest.ini", "--rootdir=."]
    return int(pytest.main([notebook, *options], plugins=[nbval.plugin, plugin]))


if __name__ == "__main__":
    sys.exit(main())
