"""Text that labcoder has never seen: a fixed one in the repository, and this Python's standard library."""

from __future__ import annotations

import hashlib
import os
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from labkit import paths
from labkit.errors import LabkitError

STDLIB_BYTES = 110_000
"""About 32k tokens of labcoder's."""

MODULE_BYTES = range(2_000, 24_000)
"""Shorter modules only re-export; longer ones would be most of the sample."""

LEFT_OUT = frozenset(
    "__pycache__ site-packages dist-packages test tests idlelib tkinter turtledemo encodings lib2to3 pydoc_data "
    "distutils ensurepip lib-dynload _vendor importlib tomllib unittest zipfile zoneinfo".split()
)
"""Folders: other people's packages, tests, tables, what some installations lack, and packages that are also
published on their own (importlib_metadata, tomli, mock, zipp …), which a model may have been trained on."""

GENERATED = re.compile(r"(auto(matically)?[- ]?generated|generated (by|from)|do not edit)", re.IGNORECASE)


def evaluation_text(name: str = "fixed") -> str:
    """The evaluation text of that name.

    Args:
        name: "fixed" is data/evaltext, the same for every Python; "stdlib" is a sample of this Python's
            standard library, larger, but another one for another Python version (record the version with it).

    Raises:
        LabkitError: another name, or the text is not there.
    """
    return "".join(text for _, text in evaluation_files(name))


def evaluation_files(name: str = "fixed") -> list[tuple[str, str]]:
    """The modules of an evaluation text as (name, source), in the order in which they are joined."""
    if name == "fixed":
        found = sorted((paths.data() / "evaltext").glob("*.py"))
        files = [(path.stem, path.read_text(encoding="utf-8")) for path in found]
    elif name == "stdlib":
        files = _sample(Path(sysconfig.get_paths()["stdlib"]))
    else:
        raise LabkitError(f"There is no evaluation text {name!r}.", 'Use "fixed" or "stdlib".')
    if not files:
        raise LabkitError(
            f"The evaluation text {name!r} is not on this machine.",
            "Restore data/evaltext from a fresh clone, or use a Python whose library is installed as source.",
        )
    return files


def _sample(library: Path) -> list[tuple[str, str]]:
    """Whole modules in an order given by the hash of their names, until there are STDLIB_BYTES.

    The order depends on nothing but names, so two Python versions share most of their sample.
    """
    names = {".".join(path.relative_to(library).with_suffix("").parts): path for path in _sources(library)}
    files: list[tuple[str, str]] = []
    left = STDLIB_BYTES
    for name in sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest()):
        text = _written_by_hand(names[name])
        if text is None:
            continue
        # the last module is cut at the end of a line
        cut = text.encode()[:left].decode(errors="ignore")
        files.append((name, cut if cut == text else cut[: cut.rfind("\n") + 1]))
        left -= len(text.encode())
        if left <= 0:
            break
    return files


def _sources(library: Path) -> Iterator[Path]:
    """Every .py below `library`, never entering what is left out (site-packages can be huge)."""
    for folder, inner, files in os.walk(library):
        inner[:] = [name for name in inner if name not in LEFT_OUT and not name.startswith("config-")]
        # _sysconfigdata describes one machine
        yield from (
            Path(folder, file)
            for file in files
            if file.endswith(".py") and not file.startswith("_sysconfigdata")
        )


def _written_by_hand(path: Path) -> str | None:
    """The source of a module, or None if it is generated, too short, too long or unreadable."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    return text if len(text.encode()) in MODULE_BYTES and not GENERATED.search(text[:2000]) else None
