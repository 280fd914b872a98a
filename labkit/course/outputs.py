"""What an executed notebook may keep: short outputs, static pictures, and nothing that names this machine."""

import os
import re
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path

from nbformat import NotebookNode

from labkit import paths
from labkit.course.widgets import WIDGET_MIME
from labkit.errors import LabkitError

LINES, WIDTH = 60, 400  # of a text output
LARGEST_FILE = 800_000  # bytes
TEXTUAL = re.compile(r"text/|application/json|image/svg|javascript")
ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{6,16}\b")
CELL_FILE = re.compile(r"(?:[A-Za-z]:)?(?:[/\\][\w.~-]+)*[/\\]ipykernel_\d+[/\\]\d+\.py")
PATH = re.compile(
    r"(?<![\w.:/<>])(?:/(?:home|Users|root|tmp|work|var|opt|mnt|private)/|[A-Za-z]:\\)[^\s'\"<>,;:)]+"
)


def clean(notebook: NotebookNode, folders: Sequence[Path] = ()) -> None:
    """Make the outputs fit to be committed, in place.

    Args:
        notebook: an executed notebook.
        folders: temporary folders of this execution, whose names must not stay.

    Raises:
        LabkitError: when a path of this machine is left, with its cell.
    """
    names = _machine_names(folders)
    notebook.metadata.pop("widgets", None)
    for number, cell in enumerate(notebook.cells, 1):
        if cell.cell_type != "code":
            continue
        cell.metadata.pop("execution", None)  # wall-clock times of this run
        cell.outputs = [
            kept for output in _merged(cell.outputs) if (kept := _cleaned(output, names)) is not None
        ]
        for text in _texts(cell.outputs):
            if found := PATH.search(text):
                raise LabkitError(
                    f"Cell {number} prints a path of this machine: {found.group()}",
                    "Print a name relative to the course's folder.",
                )


def check_size(text: str, notebook: NotebookNode) -> None:
    """Refuse a file that is too large, naming the cells that make it so."""
    size = len(text.encode())
    if size <= LARGEST_FILE:
        return
    weights = sorted(
        ((len(str(cell.get("outputs", ""))), number) for number, cell in enumerate(notebook.cells, 1)),
        reverse=True,
    )
    largest = ", ".join(f"cell {number} ({weight / 1e3:.0f} kB)" for weight, number in weights[:3])
    raise LabkitError(
        f"The executed notebook has {size / 1e6:.2f} MB, more than {LARGEST_FILE / 1e6} MB: {largest}."
    )


def _merged(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Neighbouring pieces of one stream joined: how they were cut is chance."""
    merged: list[NotebookNode] = []
    for output in outputs:
        last = merged[-1] if merged else None
        if (
            last is not None
            and output.output_type == "stream" == last.output_type
            and output.name == last.name
        ):
            last.text += output.text
        else:
            merged.append(output)
    return merged


def _cleaned(output: NotebookNode, names: Sequence[tuple[str, str]]) -> NotebookNode | None:
    """One output without machine names; None when nothing of it is worth keeping on paper."""
    if output.output_type == "stream":
        output.text = _plain(_trimmed(_settled(output.text)), names)
        return output if output.text.strip() else None
    if "data" not in output:
        return output
    was_widget = output.data.pop(WIDGET_MIME, None) is not None
    output.metadata.pop(WIDGET_MIME, None)
    for mime, content in list(output.data.items()):
        if isinstance(content, str) and TEXTUAL.search(mime):
            plain = _plain(content, names)
            output.data[mime] = _trimmed(plain) if mime == "text/plain" else plain
    # A bare widget's text is its Python repr, which says nothing to a reader.
    return None if was_widget and set(output.data) <= {"text/plain"} else output


def _settled(text: str) -> str:
    """What a terminal would show in the end: a carriage return starts the line again (progress bars)."""
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))


def _plain(text: str, names: Sequence[tuple[str, str]]) -> str:
    text = CELL_FILE.sub("<cell>", text)
    for name, stands_for in names:
        text = text.replace(name, stands_for)
    return ADDRESS.sub("0x…", text)


def _trimmed(text: str) -> str:
    lines = [line if len(line) <= WIDTH else f"{line[:WIDTH]}…" for line in text.split("\n")]
    if len(lines) <= LINES:
        return "\n".join(lines)
    head, tail = lines[: LINES - 11], lines[-10:]
    return "\n".join([*head, f"… {len(lines) - len(head) - len(tail)} lines left out …", *tail])


def _texts(outputs: list[NotebookNode]) -> list[str]:
    """Every text that a reader could see in these outputs."""
    found = []
    for output in outputs:
        if output.output_type == "stream":
            found.append(output.text)
        for mime, content in output.get("data", {}).items():
            if isinstance(content, str) and TEXTUAL.search(mime):
                found.append(content)
    return found


def _machine_names(folders: Sequence[Path]) -> list[tuple[str, str]]:
    """Folders of this machine and what to write instead, longest first."""
    known = [(folder, "work") for folder in folders]
    known += [(Path(sysconfig.get_paths()[key]), "<python>") for key in ("purelib", "platlib", "stdlib")]
    known += [
        (Path(sys.prefix), "<python>"),
        (paths.root(), ""),
        (Path(tempfile.gettempdir()), "<temporary>"),
    ]
    known += [(Path.home(), "~")]
    pairs = {str(path): word for path, word in known} | {str(path.resolve()): word for path, word in known}
    full = [(f"{name}{os.sep}", f"{word}/" if word else "") for name, word in pairs.items()]
    bare = [(name, word or ".") for name, word in pairs.items()]
    return sorted((pair for pair in full + bare if len(pair[0]) > 2), key=lambda pair: -len(pair[0]))
