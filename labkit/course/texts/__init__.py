"""The catalogue: every sentence that checks, hints and widgets say, in one language.

`texts/<language>/common.toml` holds what the machinery says, `texts/<language>/<notebook>.toml` what each
exercise says. LABKIT_LANG chooses the language (default "en"). A teacher's own folder is added with
`add_folder`; it holds the same `<language>/<notebook>.toml`.
"""

import os
import string
import tomllib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from labkit.course.texts.shown import Filler
from labkit.errors import LabkitError

_folders: list[Path] = [Path(__file__).parent]


@dataclass(frozen=True)
class ExerciseTexts:
    """What one exercise says: its title, three hints from a nudge to nearly the answer, failure texts by key."""

    title: str
    hints: tuple[str, ...]
    failures: dict[str, str]


def add_folder(folder: Path) -> None:
    """Look for notebooks' texts in `folder`/<language>/ as well."""
    if folder not in _folders:
        _folders.append(folder)
        _read.cache_clear()


def text(key: str, /, **fields: Any) -> str:
    """A sentence of the machinery, `section.name` in common.toml, with its fields filled in."""
    found: Any = _read("common", _language())
    for part in key.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    if not isinstance(found, str):
        raise _missing(key, "common")
    return fill(found, fields)


def exercise(notebook: str, name: str) -> ExerciseTexts:
    """What the exercise `name` of `notebook` says.

    Raises:
        LabkitError: when the file, the exercise, its title or its hints are missing, or a text's braces are odd.
    """
    entry = _read(notebook, _language()).get(name)
    if not isinstance(entry, dict):
        raise _missing(name, notebook)
    for key in ("title", "hints"):
        if key not in entry:
            raise _missing(f"{name}.{key}", notebook)
    failures = dict(entry.get("failures", {}))
    for key, template in failures.items():
        _parse(template, f"{notebook}: {name}.failures.{key}")
    return ExerciseTexts(entry["title"], tuple(entry["hints"]), failures)


def words(notebook: str) -> dict[str, str]:
    """What a notebook's own tables and pictures say: the table `[words]` of its file, empty where there is none."""
    return {key: str(value) for key, value in _read(notebook, _language()).get("words", {}).items()}


def failure(notebook: str, name: str, key: str, fields: dict[str, Any]) -> str:
    """The text for one failure of an exercise: its own, or else the common one of that key."""
    own = exercise(notebook, name).failures
    if key in own:
        return fill(own[key], fields)
    if key in _read("common", _language()).get("failures", {}):
        return text(f"failures.{key}", **fields)
    raise _missing(f"{name}.failures.{key}", notebook)


def fill(template: str, fields: dict[str, Any]) -> str:
    """`template.format(**fields)`, but safe with whatever a learner's function returned.

    A field that cannot take the template's format (`{got:.3f}` with None) is shown as it is, long values are
    cut, and a field that is not given stays as its name in braces.
    """
    return Filler().vformat(template, (), fields)


def _language() -> str:
    return os.environ.get("LABKIT_LANG", "").strip() or "en"


@lru_cache(maxsize=64)
def _read(name: str, language: str) -> dict[str, Any]:
    """One file of the catalogue, from the first folder that has it."""
    for folder in _folders:
        path = folder / language / f"{name}.toml"
        if path.is_file():
            try:
                return tomllib.loads(path.read_text(encoding="utf-8"))
            except tomllib.TOMLDecodeError as error:
                raise LabkitError(f"{language}/{path.name} is not valid TOML: {error}.") from error
    languages = sorted({entry.parent.name for folder in _folders for entry in folder.glob(f"*/{name}.toml")})
    raise LabkitError(
        f"There are no texts for {name} in the language {language!r}.",
        f"Set LABKIT_LANG to one of: {', '.join(languages)}."
        if languages
        else f"Add {language}/{name}.toml.",
    )


def _parse(template: Any, where: str) -> None:
    try:
        list(string.Formatter().parse(template))
    except (TypeError, ValueError) as error:
        raise LabkitError(
            f"The text {where} cannot be filled in: {error}.", "Write a literal brace twice."
        ) from error


def _missing(key: str, name: str) -> LabkitError:
    return LabkitError(f"The text {key!r} is missing from {_language()}/{name}.toml.", "Add it there.")
