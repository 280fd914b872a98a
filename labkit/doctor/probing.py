"""Run the probes in a second process, so that a crash of a native library becomes a finding, not the end."""

import json
import os
import subprocess
import sys
import threading
from types import TracebackType
from typing import Any

TIME_LIMIT = 240.0  # seconds; a cold start on a slow disk reads two gigabytes
PROBES = ("torch", "triton", "bitsandbytes", "labcoder", "exercises")
Facts = dict[str, dict[str, Any]]


class Probes:
    """The running probe process; `collect` waits for what it found.

    Args:
        command: what to run in place of the real probes (for tests).
    """

    def __init__(self, command: list[str] | None = None, time_limit: float = TIME_LIMIT) -> None:
        self._limit = time_limit
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
        self._process = subprocess.Popen(
            command or [sys.executable, "-m", "labkit.doctor.probe"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            errors="replace",
            env=environment,
        )

    def __enter__(self) -> "Probes":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()

    def collect(self) -> Facts:
        """The facts by probe. A probe that never reported has an "error" that says how its process ended."""
        timer = threading.Timer(self._limit, self._process.kill)
        timer.start()
        out, err = self._process.communicate()
        late = not timer.is_alive()
        timer.cancel()
        facts: Facts = {}
        for line in out.splitlines():
            try:
                entry = json.loads(line)
                facts[entry["probe"]] = entry["facts"]
            except (ValueError, TypeError, KeyError):
                continue  # a library printed something of its own
        ending = self._ending(late, err)
        for probe in PROBES:
            facts.setdefault(probe, {"error": ending})
        return facts

    def _ending(self, late: bool, err: str) -> str:
        if late:
            return f"no answer within {self._limit:.0f} s"
        code = self._process.returncode
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        last = err.strip().splitlines()[-1:] or ["nothing"]
        return f"the probing process ended early ({how}); its last words: {last[0][:200]}"
