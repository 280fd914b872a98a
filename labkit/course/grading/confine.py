"""What a learner's process may not do. Stands alone: that process loads it without labkit.

An answer that is judged has three layers around it, none of which it can take off again:

- an audit hook (every system) refuses in words: importing labkit, opening files of the course, writing outside the
  process's own folder, starting or ending processes, the network, ctypes. Code that does not pass Python's hooks
  (a library's, for instance) gets around it;
- Landlock (Linux 5.13 and later, where it is switched on) has the kernel refuse the same files to all code, and,
  from Linux 6.12, signals to processes outside;
- limits (Linux) on data memory, computing time and the size of a file; elsewhere the grader's watch ends the process.

The whole-notebook run needs labkit, processes and the network of Jupyter's kernel, so Landlock is its only layer:
it may read everything, but write to its own folder only (and to devices and shared memory). Without Landlock (macOS,
Windows, older Linux, some containers) that run has the rights of whoever grades: it can change their files.

Linux also lets the grader end what a learner's code left running, even in a session of its own; elsewhere a process
that detached itself stays.

All this keeps one learner's code from a class's files, and from the solutions while it is judged. It is no wall
against an attack on the machine: grade strangers' notebooks in a container or a virtual machine, above all where
there is no Landlock.
"""

import os
import sys
import time
from collections.abc import Callable, Container, Iterable
from typing import Any

FILE_SIZE = 256 * 2**20  # bytes of one file that an answer writes
PATIENCE = 5.0  # seconds for ending processes that keep starting others
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC
_PROCESSES = (
    "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.startfile",
    "subprocess.Popen", "pty.spawn", "os.kill", "os.killpg", "signal.pthread_kill", "_winapi.CreateProcess",
)  # fmt: skip
_NETWORK = ("socket.connect", "socket.bind", "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname")
_INNARDS = ("ctypes.", "gc.get_", "sys._current_frames")
_LISTS = ("os.listdir", "os.scandir", "os.chdir", "os.walk")
_CHANGES = (
    "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.chmod",
    "os.chown", "os.utime", "shutil.",
)  # fmt: skip


def audit(forbidden: Iterable[str], folder: str, words: dict[str, str]) -> None:
    """Install the hook.

    Args:
        forbidden: files and folders that may not be read.
        folder: the only one that may be written to.
        words: what to say of "labkit", "read", "change" (with {path}), "process", "network", "innards" (with {event}).
    """
    sys.addaudithook(_hook(tuple(map(os.path.realpath, forbidden)), os.path.realpath(folder), dict(words)))


def _hook(
    forbidden: tuple[str, ...], folder: str, words: dict[str, str]
) -> Callable[[str, tuple[Any, ...]], None]:
    # Everything the hook uses is bound here, before the learner's code can put something else in its place.
    real, fsdecode, separator, null, inside = os.path.realpath, os.fsdecode, os.sep, os.devnull, _inside
    text, number, kind, own = (str, bytes), int, isinstance, f"/proc/{os.getpid()}"
    writes, processes, network, innards = _WRITES, _PROCESSES, _NETWORK, _INNARDS
    lists, changes = _LISTS, _CHANGES
    missing, denied, fault = ImportError, PermissionError, RuntimeError

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event == "import":
            if args[0] == "labkit" or args[0].startswith("labkit."):
                raise missing(words["labkit"])
        elif event == "open" or event.startswith(lists):
            if kind(args[0], number):
                return  # a descriptor that is already open
            where = real(fsdecode("." if args[0] is None else args[0]))
            foreign = (
                where.startswith("/proc/") and where[6].isdigit() and not inside(where, (own,), separator)
            )
            if foreign or inside(where, forbidden, separator):
                raise denied(words["read"].format(path=where))
            elsewhere = where != null and not inside(where, (folder,), separator)
            if event == "open" and args[2] & writes and elsewhere:
                raise denied(words["change"].format(path=where))
        elif event.startswith(changes):
            for path in args:
                if kind(path, text) and not inside(real(fsdecode(path)), (folder,), separator):
                    raise denied(words["change"].format(path=path))
        elif event.startswith(processes):
            raise fault(words["process"])
        elif event.startswith(network):
            raise denied(words["network"])
        elif event.startswith(innards):
            raise fault(words["innards"].format(event=event))

    return hook


def _inside(path: str, folders: tuple[str, ...], separator: str) -> bool:
    for folder in folders:
        if path == folder or path.startswith(folder + separator):
            return True
    return False


def limit(memory: int | None, seconds: int) -> None:
    """Let this process allocate at most `memory` more bytes than it has now, and compute for `seconds` (Linux).

    A file that it writes may grow to FILE_SIZE.
    """
    if sys.platform != "linux":
        return
    import resource

    if memory:
        with open("/proc/self/statm") as file:
            data = int(file.read().split()[5]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_DATA, (data + memory, data + memory))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))  # should the grader be gone by then
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_SIZE, FILE_SIZE))


def adopt_orphans(on: bool = True) -> None:
    """Have processes whose parent has ended, below this one, become its children rather than init's (Linux)."""
    if sys.platform != "linux":
        return
    import ctypes

    child_subreaper = 36
    ctypes.CDLL(None).prctl(child_subreaper, int(on), 0, 0, 0)


def end_children(others: Container[int]) -> None:
    """End this process's children and what descends from them, but for `others` (process ids)."""
    import psutil

    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        left = [child for child in psutil.Process().children() if child.pid not in others]
        if not left:
            return
        for process in [*left, *(below for child in left for below in child.children(recursive=True))]:
            try:
                process.kill()
            except psutil.Error:
                pass  # gone by itself
        psutil.wait_procs(left, timeout=1.0)  # orphans that they leave are children of this process now


def landlock(readable: Iterable[str], writable: Iterable[str]) -> bool:
    """Have the Linux kernel close every file but these to this process and its children.

    Args:
        readable: folders that may be read and executed from; devices under /dev may be written to.
        writable: folders that may be read and changed.

    Returns:
        Whether the kernel does it (Linux 5.13 and later, where Landlock is switched on).
    """
    if sys.platform != "linux":
        return False
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    create, add, restrict, no_new_privileges = 444, 445, 446, 38  # the same numbers on every architecture
    version = libc.syscall(create, None, 0, 1)
    if version < 1:
        return False
    execute, write, read_file, read_folder = 1, 2, 4, 8
    every = (1 << (13 + (version >= 2) + (version >= 3))) - 1  # REFER and TRUNCATE came with versions 2 and 3
    signals = 2  # version 6: no signal leaves this process's domain
    rules = (ctypes.c_uint64 * 3)(every, 0, signals if version >= 6 else 0)
    ruleset = libc.syscall(create, rules, 24 if version >= 6 else 8, 0)
    rights = dict.fromkeys(readable, execute | read_file | read_folder)
    rights |= {"/dev": write | read_file | read_folder, **dict.fromkeys(writable, every)}
    for path, access in rights.items():
        if not os.path.isdir(path):
            continue
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rule = access.to_bytes(8, sys.byteorder) + descriptor.to_bytes(4, sys.byteorder)
        libc.syscall(add, ruleset, 1, rule, 0)
        os.close(descriptor)
    done = libc.prctl(no_new_privileges, 1, 0, 0, 0) == 0 and libc.syscall(restrict, ruleset, 0) == 0
    os.close(ruleset)
    return done
