"""The processes that learners' code runs in: forked from one that has imported torch already, or started alone."""

import functools
import os
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self

import psutil

import labkit
from labkit import paths
from labkit.course.grading import wire

SCRIPT = Path(__file__).with_name("worker.py")
FORKS = sys.platform == "linux"  # macOS could, but its system libraries may crash in the child
GIB = 2**30


@dataclass(frozen=True)
class Process:
    """One learner's process: its streams, how to cut them off, and how to learn its exit code (None: unknown)."""

    pid: int
    incoming: BinaryIO
    outgoing: BinaryIO
    hang_up: Callable[[], None]
    wait: Callable[[], int | None]

    def alive(self) -> bool:
        try:
            return psutil.Process(self.pid).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def memory(self) -> int:
        """Bytes of RAM in use; 0 when it is gone."""
        try:
            return int(psutil.Process(self.pid).memory_info().rss)
        except psutil.Error:
            return 0

    def kill(self) -> None:
        """End it and whatever it started. Its id stays taken until `wait`, so this cannot hit another process."""
        try:
            family = [psutil.Process(self.pid)]
            family += family[0].children(recursive=True)
        except psutil.Error:
            family = []
        for process in family:
            try:
                process.kill()
            except psutil.Error:
                pass  # gone by itself
        self.hang_up()


class Workers:
    """Where learners' processes come from, and the limits that hold for each.

    Args:
        seconds: how long one exercise may take, all calls together.
        memory: bytes that it may use beyond what an idle process has.
        forbidden: files and folders that it may not read, besides the course's own.
        fork: False starts every process from nothing (seconds each), as macOS and Windows must.
    """

    def __init__(
        self,
        *,
        seconds: float = 30.0,
        memory: int = 2 * GIB,
        forbidden: Iterable[Path] = (),
        fork: bool = FORKS,
    ) -> None:
        self.seconds, self.memory, self.fork = seconds, memory, fork
        course = [paths.root() / "tests", paths.notebooks(), paths.solutions(), paths.work()]
        self.forbidden = [str(folder) for folder in (Path(labkit.__file__).parent, *course, *forbidden)]
        self._server: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._imported: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def launch(self, imports: Iterable[str] = ()) -> Process:
        """A new process; a forked one has run `imports` already (the course's own statements, never a learner's)."""
        if not self.fork:
            return _start_alone()
        try:
            return self._fork(imports)
        except OSError:  # something ended the fork server; a new one does as well
            self._stop()
            return self._fork(imports)

    def _fork(self, imports: Iterable[str]) -> Process:
        control = self._control or self._start()
        new = [statement for statement in imports if statement not in self._imported]
        if new:
            self._imported.update(new)
            data = wire.pack(new)
            control.sendall(b"i" + len(data).to_bytes(8, "big") + data)
        mine, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(control, [b"f"], [theirs.fileno()])
            pid = _number(control)

        def hang_up() -> None:
            try:
                mine.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # they hung up first

        @functools.cache
        def wait() -> int | None:
            try:
                control.sendall(b"w" + pid.to_bytes(8, "big"))
                return os.waitstatus_to_exitcode(_number(control))
            except OSError:
                return None
            finally:
                mine.close()

        return Process(pid, mine.makefile("rb"), mine.makefile("wb"), hang_up, wait)

    def _start(self) -> socket.socket:
        self._control, theirs = socket.socketpair()
        one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        with theirs:
            self._server = subprocess.Popen(
                [sys.executable, "-I", str(SCRIPT), "fork", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **one_thread},
            )
        self._imported = set()
        return self._control

    def _stop(self) -> None:
        if self._server is not None and self._control is not None:
            self._control.close()
            self._server.kill()
            self._server.wait()
        self._server = self._control = None


def _start_alone() -> Process:
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-I", str(SCRIPT), "serve"], stdin=pipe, stdout=pipe)
    assert process.stdin is not None and process.stdout is not None
    process.stdout.read(1)  # it is ready
    incoming: Any = process.stdout
    outgoing: Any = process.stdin
    return Process(process.pid, incoming, outgoing, lambda: None, process.wait)


def _number(control: socket.socket) -> int:
    data = b""
    while len(data) < 8:
        part = control.recv(8 - len(data))
        if not part:
            raise ConnectionError("the fork server has ended")
        data += part
    return int.from_bytes(data, "big")


def readable() -> list[str]:
    """What Python itself needs to read: the interpreter, the installed packages, the system's libraries."""
    own = {sys.prefix, sys.base_prefix, sys.exec_prefix, *sysconfig.get_paths().values()}
    return [*sorted(own), "/usr", "/lib", "/lib64", "/bin", "/etc", "/opt", "/nix", "/proc", "/sys"]
