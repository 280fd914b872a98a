"""The process in which a learner's code runs while it is graded. Run as a script (`python -I worker.py …`), without
labkit: nothing in this process knows what is right, and nothing it sends is a verdict.

`worker.py fork FD` has imported torch once and forks one child an exercise; the control socket FD takes
    b"i" + message    statements to import beforehand, from the course's own set-up cells
    b"f" + a socket   fork a child that serves this socket; answered by its process id (8 bytes)
    b"w" + id         wait for the end of that child; answered by its wait status (8 bytes)
`worker.py serve` (where there is no safe fork) is one such child, on its standard input and output, after a "!".

A child receives ("start", job), runs the cells and answers ("ready",), or else how they ended. Then it answers
each ("call", args, kwargs) with one of
    ("returned", value, whether it changed its arguments), ("unplain", what),
    ("signature", text, error), ("raised", kind, message, lines)
and before that asks, any number of times, ("callback", number, args, kwargs) of the callables among the arguments;
the grader answers ("returned", value) or ("raised", kind, message).
"""

import builtins
import importlib.util
import inspect
import io
import linecache
import os
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

ANSWER = "<your answer>"
WIDTH = 100  # characters of a source line that are quoted
PRINTED = 4000  # characters of the latest output that are kept
LINES = 8


def _beside(name: str) -> ModuleType:
    """A module of this folder, which is not on the path."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


wire, frames, confine, interpret = (_beside(name) for name in ("wire", "frames", "confine", "interpret"))


class Printed(io.TextIOBase):
    """Takes what the learner's code prints and keeps the end of it."""

    def __init__(self) -> None:
        self.tail = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.tail = (self.tail + text)[-PRINTED:]
        return len(text)

    def lines(self) -> list[str]:
        """The last few lines, and a clean slate."""
        lines, self.tail = self.tail.splitlines()[-LINES:], ""
        return lines


class Child:
    """One exercise's process: the answer's function, and the conversation about it."""

    def __init__(self, incoming: BinaryIO, outgoing: BinaryIO) -> None:
        self.incoming, self.outgoing = incoming, outgoing
        self.printed = Printed()
        self.function: Callable[..., Any] | None = None

    def serve(self) -> None:
        """Answer the grader until it hangs up."""
        while True:
            try:
                message = self.receive()
            except EOFError:
                return
            answer = self.start(message[1]) if message[0] == "start" else self.call(message[1], message[2])
            frames.write(self.outgoing, answer)

    def receive(self) -> Any:
        return wire.unpack(frames.read(self.incoming), revive=self.callback)

    def start(self, job: dict[str, Any]) -> bytes:
        """Shut the doors, then run the imports, the learner's own definitions and, among them, the answer."""
        self.confine(job)
        space: dict[str, Any] = {"__name__": "__main__"}
        self.define([*job["imports"], *job["above"]], space)
        try:
            exec(_compiled(job["answer"], ANSWER), space)
        except BaseException as error:
            return self.raised(error)
        self.function = interpret.launcher(space.get(job["name"]))
        self.define(job["below"], space)
        return wire.pack(("ready",) if callable(self.function) else ("undefined",))

    def define(self, statements: list[str], space: dict[str, Any]) -> None:
        """Run statements of other cells; one that fails costs the answer only what it would have defined."""
        for statement in statements:
            try:
                exec(_compiled(statement, f"<another cell, {len(linecache.cache)}>"), space)
            except BaseException:
                continue

    def confine(self, job: dict[str, Any]) -> None:
        os.chdir(job["folder"])
        os.environ.update(dict.fromkeys(("HOME", "TMPDIR", "TEMP", "TMP", "LABKIT_WORK"), job["folder"]))
        tempfile.tempdir = None
        sys.dont_write_bytecode = True
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        sys.stdin, sys.stdout, sys.stderr = open(0), self.printed, self.printed
        # Python's own would wait for the closed standard input, or close it once more.
        vars(builtins).update(input=_no_input(job["words"]["input"]), exit=sys.exit, quit=sys.exit)
        sys.modules.pop("labkit", None)  # from here on the hook refuses it, in words
        confine.limit(job["memory"], job["seconds"])
        confine.landlock(job["readable"], [job["folder"]])
        confine.audit(job["forbidden"], job["folder"], job["words"])

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """Call the learner's function once."""
        function: Any = self.function
        try:
            signature = inspect.signature(function)
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                taken = f"{getattr(function, '__name__', 'function')}{signature}"
                return wire.pack(("signature", taken, str(error)))
        except Exception:  # some callables have no signature
            pass
        before = wire.snapshot(args, kwargs)
        try:
            value = function(*args, **kwargs)
            answer: bytes = wire.pack(("returned", value, wire.snapshot(args, kwargs) != before))
        except wire.NotPlain as error:
            return wire.pack(("unplain", str(error)))
        except BaseException as error:
            return self.raised(error)
        self.printed.lines()
        return answer

    def raised(self, error: BaseException) -> bytes:
        try:
            message = str(error)[:2000]
        except BaseException:
            message = ""
        lines = [] if isinstance(error, MemoryError) else _own_lines(error)
        lines += [f"printed: {line}" for line in self.printed.lines()]
        return wire.pack(("raised", type(error).__name__, message, lines))

    def callback(self, number: int) -> Callable[..., Any]:
        """A callable of the grader's, as the learner's function sees it."""

        def ask(*args: Any, **kwargs: Any) -> Any:
            frames.write(self.outgoing, wire.pack(("callback", number, args, kwargs)))
            answer = self.receive()
            if answer[0] == "returned":
                return answer[1]
            kind = getattr(builtins, answer[1], None)
            if not (isinstance(kind, type) and issubclass(kind, Exception)):
                kind = RuntimeError
            raise kind(answer[2])

        return ask


def _compiled(source: str, name: str) -> Any:
    """Source as code, with its lines where tracebacks, and Triton's decorators, look for them."""
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    return compile(source, name, "exec")


def _no_input(words: str) -> Callable[..., str]:
    def no_input(prompt: object = "") -> str:
        raise EOFError(words)

    return no_input


def _own_lines(error: BaseException) -> list[str]:
    """The learner's part of a traceback."""
    if isinstance(error, SyntaxError) and error.filename == ANSWER:
        return [f"line {error.lineno}:  {_cut((error.text or '').strip())}"]
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == ANSWER]
    shown = own if len(own) <= 4 else [*own[:2], *own[-2:]]  # a runaway recursion repeats itself
    lines = [f"line {frame.lineno}, in {frame.name}:  {_cut(frame.line or '')}" for frame in shown]
    if len(own) > len(shown):
        lines.insert(2, f"… {len(own) - len(shown)} more calls …")
    return lines


def _cut(line: str) -> str:
    return line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"


def fork_server(control: socket.socket) -> None:
    """Serve the control socket until the grader hangs up."""
    confine.adopt_orphans()
    children: set[int] = set()
    stream = control.makefile("rb", buffering=0)
    while True:
        request, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not request:
            return
        if request == b"i":
            for statement in wire.unpack(frames.read(stream)):
                try:
                    exec(statement, {})
                except Exception:  # not installed here; an answer that needs it says so itself
                    continue
        elif request == b"w":
            ended = int.from_bytes(frames.exactly(stream, 8), "big")
            _, status = os.waitpid(ended, 0)
            children.discard(ended)
            confine.end_children(children)  # what it left running came to this process
            control.sendall(status.to_bytes(8, "big"))
        else:
            child = os.fork()
            if child == 0:
                _serve_and_end(descriptors[0])
            children.add(child)
            os.close(descriptors[0])
            control.sendall(child.to_bytes(8, "big"))


def _serve_and_end(descriptor: int) -> None:
    """A forked child's whole life; it never returns into the fork server's loop, and cannot reach its socket."""
    status = 1
    try:
        os.setsid()
        os.closerange(3, descriptor)
        os.closerange(descriptor + 1, 4096)
        channel = socket.socket(fileno=descriptor)
        Child(channel.makefile("rb"), channel.makefile("wb")).serve()
        status = 0
    finally:
        os._exit(status)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the grader's, which then ends this process
    sys.modules["labkit"] = None  # type: ignore[assignment]  # not even by an import of the set-up cell's
    import torch  # before the doors are shut: it loads libraries

    torch.set_num_threads(1)
    if sys.argv[1] == "fork":
        fork_server(socket.socket(fileno=int(sys.argv[2])))
    else:
        os.write(1, b"!")  # the clock runs from here
        Child(os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")).serve()
        os._exit(0)


if __name__ == "__main__":
    main()
