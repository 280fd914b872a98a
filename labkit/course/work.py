"""The learner's copies: notebooks/ stays pristine, work/ is theirs, and nothing of theirs is ever overwritten."""

import difflib
import shutil
from collections.abc import Sequence
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from labkit import paths
from labkit.course import edition, texts
from labkit.course.store import free_name, stamp, write_atomically
from labkit.errors import LabkitError


def open_course() -> list[str]:
    """Make work/ ready: a copy of each notebook where there is none, newer editions where nothing is lost.

    Returns:
        What the learner should know, one sentence each; empty when there is nothing to say.
    """
    notices = []
    for name in _names():
        original = paths.notebooks() / f"{name}.ipynb"
        notices += rescue(original)
        if not original.is_file():
            _restore(original)
        notices += _bring(original)
    return notices


def reset(name: str) -> list[str]:
    """Start a notebook over: the learner's copy goes to work/backups/, a fresh one takes its place.

    Args:
        name: "01_profile", "01" or "profile".

    Returns:
        Sentences saying what was done. Progress already made stays.

    Raises:
        LabkitError: when there is no such notebook.
    """
    full = full_name(name, _names())
    original, copy = paths.notebooks() / f"{full}.ipynb", paths.work() / f"{full}.ipynb"
    notices = rescue(original)
    if not original.is_file():
        _restore(original)
    if copy.is_file():
        kept = _backup(copy)
        notices.append(texts.text("work.backup", name=full, backup=_shown(kept)))
    _copy(original, copy)
    return [*notices, texts.text("work.fresh", name=full)]


def rescue(original: Path) -> list[str]:
    """Move a pristine notebook that someone edited to work/, and put the pristine one back.

    Their edits become work/NAME.ipynb; where another copy with work in it is there already, that one stays and
    theirs is put beside it.
    """
    there = read(original)
    if not original.is_file() or (there is not None and not edition.is_edited(there)):
        return []
    copy = paths.work() / original.name
    mine = read(copy)
    if copy.is_file() and (mine is None or edition.is_edited(mine)):
        copy = free_name(copy.with_stem(f"{copy.stem}-from-notebooks-{stamp()}"))
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(original, copy)
    _restore(original)
    return [texts.text("work.rescued", original=f"notebooks/{original.name}", copy=_shown(copy))]


def read(path: Path) -> NotebookNode | None:
    """A notebook file, or None when it is not there or is no notebook."""
    try:
        return nbformat.read(path, as_version=4)
    except Exception:  # nbformat has no common class: bad JSON, merge marks, another format, no permission
        return None


def full_name(name: str, known: Sequence[str]) -> str:
    """The notebook that `name` means: "01", "profile", "01_profile" or "01_profile.ipynb".

    Raises:
        LabkitError: when none or several fit.
    """
    wanted = Path(name).name.removesuffix(".ipynb").removesuffix(".py")
    fits = [one for one in known if wanted in (one, one.partition("_")[0], one.partition("_")[2])]
    if len(fits) == 1:
        return fits[0]
    near = difflib.get_close_matches(wanted, known, n=1, cutoff=0.5)
    remedy = f"Did you mean {near[0]}?" if near else f"There are: {', '.join(known) or 'none'}."
    raise LabkitError(f"There is no notebook called {name!r}.", remedy)


def _bring(original: Path) -> list[str]:
    """Copy a notebook into work/, or update an untouched copy to a newer edition."""
    copy = paths.work() / original.name
    if not copy.is_file():
        _copy(original, copy)
        return []
    theirs, ours = read(copy), read(original)
    if ours is None or theirs is None or not _is_older(theirs, ours):
        return []
    if edition.is_edited(theirs):
        return [texts.text("work.newer", name=original.stem, number=original.stem.partition("_")[0])]
    _copy(original, copy)
    return [texts.text("work.updated", name=original.stem)]


def _is_older(theirs: NotebookNode, ours: NotebookNode) -> bool:
    """Whether a copy was made from another edition than the present one."""
    key = "contents_hash"
    return theirs.metadata.get("labkit", {}).get(key) != ours.metadata.get("labkit", {}).get(key)


def _names() -> list[str]:
    """Every notebook of the course: those with a source, and those already built."""
    sources = {path.stem for path in paths.solutions().glob("[0-9][0-9]_*.py")}
    return sorted(sources or {path.stem for path in paths.notebooks().glob("[0-9][0-9]_*.ipynb")})


def _restore(original: Path) -> None:
    """Build the pristine notebook again from its source."""
    from labkit.course.build import pristine

    text = edition.dumps(pristine(paths.solutions() / f"{original.stem}.py"))
    original.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(original, text)


def _backup(copy: Path) -> Path:
    kept = free_name(copy.parent / "backups" / f"{copy.stem}-{stamp()}.ipynb")
    kept.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(copy, kept)
    return kept


def _copy(original: Path, copy: Path) -> None:
    copy.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(copy, original.read_text(encoding="utf-8"))


def _shown(path: Path) -> str:
    """A path as the learner sees it in the file browser."""
    return f"work/{path.relative_to(paths.work()).as_posix()}"
