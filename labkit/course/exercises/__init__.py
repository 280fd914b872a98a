"""Every exercise of the course, by name and by notebook.

Each room has a sub-package here whose `EXERCISES` lists its exercises. A teacher adds their own with `add`.
"""

import difflib
import importlib
import pkgutil
from collections.abc import Iterable

from labkit.course.exercise import Exercise
from labkit.errors import LabkitError

_registry: dict[str, Exercise] = {}
_collected = False


def add(exercises: Iterable[Exercise]) -> None:
    """Make exercises known. Adding the same one again is fine.

    Raises:
        LabkitError: when another exercise already has the name.
    """
    for exercise in exercises:
        known = _registry.setdefault(exercise.name, exercise)
        if known != exercise:
            raise LabkitError(
                f"Two exercises are called {exercise.name!r}, in {known.notebook} and {exercise.notebook}.",
                "Rename one: a name belongs to one exercise.",
            )


def find(name: str) -> Exercise:
    """The exercise called `name`.

    Raises:
        LabkitError: when there is none, with the nearest names there are.
    """
    known = _all()
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    remedy = f"Did you mean {' or '.join(near)}?" if near else f"There are: {', '.join(known) or 'none'}."
    raise LabkitError(f"There is no exercise called {name!r}.", remedy)


def of(notebook: str) -> tuple[Exercise, ...]:
    """The exercises of one notebook, in the order of its room's list."""
    return tuple(exercise for exercise in _all().values() if exercise.notebook == notebook)


def names() -> tuple[str, ...]:
    """The name of every exercise, notebook by notebook."""
    return tuple(_all())


def notebooks() -> tuple[str, ...]:
    """Every notebook that has exercises, in order."""
    return tuple(sorted({exercise.notebook for exercise in _all().values()}))


def _all() -> dict[str, Exercise]:
    """The registry, filled from the rooms' sub-packages on first use (they import torch)."""
    global _collected
    if not _collected:
        for room in pkgutil.iter_modules(__path__):
            if room.ispkg:
                add(importlib.import_module(f"{__name__}.{room.name}").EXERCISES)
        _collected = True
    return dict(sorted(_registry.items(), key=lambda item: item[1].notebook))
