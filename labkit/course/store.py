"""What the course remembers of a learner: passed exercises, predictions, the ledger. One JSON file in the work folder.

Two notebooks may write at the same time (a file lock), a crash leaves the old file or the new one (written aside,
then renamed), and a file that cannot be read is moved aside with a notice, never deleted.
"""

import json
import os
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from labkit import paths
from labkit.course import texts

VERSION = 1
SECTIONS: dict[str, type] = {"exercises": dict, "predictions": dict, "ledger": list}
LOCK_SECONDS = 10.0


def file() -> Path:
    """Where it is kept."""
    return paths.state() / "progress.json"


def read() -> dict[str, Any]:
    """Everything remembered; empty sections when there is nothing yet."""
    try:
        return _parse(file().read_bytes())
    except FileNotFoundError:
        return _empty()
    except ValueError:
        return update(lambda content: None)  # moves the broken file aside, under the lock
    except OSError as error:
        _notice(texts.text("store.unreadable", file=file().name, error=error.strerror or error))
        return _empty()


def update(change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Read, let `change` edit the content in place, and write it back, all under the lock.

    A folder that cannot be written costs the memory of this change only: a notice says so and nothing raises.
    """
    content = _empty()
    try:
        file().parent.mkdir(parents=True, exist_ok=True)
        with FileLock(file().with_suffix(".lock"), timeout=LOCK_SECONDS):
            content = _read_or_move_aside()
            change(content)
            write_atomically(file(), json.dumps(content, indent=1, ensure_ascii=False, sort_keys=True) + "\n")
    except (OSError, Timeout) as error:
        change(content)
        _notice(texts.text("store.unwritable", folder=file().parent.name, error=type(error).__name__))
    return content


def write_atomically(path: Path, text: str) -> None:
    """Replace `path` with `text` in one step: a reader sees the old content or the new, never a part."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with aside.open("w", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def now() -> str:
    """This moment, local time with its offset, to the second."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


def stamp() -> str:
    """This moment as part of a file name."""
    return datetime.now().strftime("%Y%m%d-%H%M%S")


def free_name(path: Path) -> Path:
    """`path`, or when it is taken the first of path-2, path-3, … that is not."""
    candidate, number = path, 2
    while candidate.exists():
        candidate, number = path.with_stem(f"{path.stem}-{number}"), number + 1
    return candidate


def _empty() -> dict[str, Any]:
    return {"version": VERSION, **{name: kind() for name, kind in SECTIONS.items()}}


def _parse(raw: bytes) -> dict[str, Any]:
    """The file's content with every section there. ValueError when it is not what this module writes."""
    content = json.loads(raw.decode("utf-8"))
    if not isinstance(content, dict):
        raise ValueError("not an object")
    content = {**_empty(), **content}
    for name, kind in SECTIONS.items():
        section = content[name]
        entries = section.values() if isinstance(section, dict) else section
        if not isinstance(section, kind) or not all(isinstance(entry, dict) for entry in entries):
            raise ValueError(f"{name} is damaged")
    return content


def _read_or_move_aside() -> dict[str, Any]:
    try:
        return _parse(file().read_bytes())
    except FileNotFoundError:
        return _empty()
    except ValueError:
        aside = free_name(file().with_name(f"progress-damaged-{stamp()}.json"))
        file().rename(aside)
        _notice(texts.text("store.damaged", file=file().name, aside=aside.name))
        return _empty()


def _notice(text: str) -> None:
    print(text, file=sys.stderr)
