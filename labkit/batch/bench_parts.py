"""A benchmark in parts: which of them to run, one after the other, and what is kept of an earlier record."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from labkit import results
from labkit.batch.bench import release
from labkit.errors import LabkitError
from labkit.fuse.contest import reason

say = partial(print, flush=True)
"""At once: a run that is cut off has shown what it had."""

Parts = Mapping[str, Callable[[Any], Any]]
"""Name → what measures it; called with what all parts need, which has the model as `lm`."""


def chosen(only: str, parts: Parts) -> list[str]:
    """The names in a list with commas, in the order of the parts; all when empty.

    Raises:
        LabkitError: one is none.
    """
    names = [name.strip() for name in only.split(",") if name.strip()] or list(parts)
    for name in names:
        if name not in parts:
            raise LabkitError(f"The benchmark has no part {name!r}.", f"There are: {', '.join(parts)}.")
    return [name for name in parts if name in names]


def measure(names: list[str], parts: Parts, kitchen: Any, figures: dict[str, Any]) -> None:
    """Run parts, and put into figures what each gives and the seconds it took. A part's failure is a finding."""
    for name in names:
        say(f"{name}:")
        start = time.perf_counter()
        try:
            figures[name] = parts[name](kitchen)
        except Exception as error:  # one part's trouble; minutes of measuring are not thrown away for it
            figures[name] = {"unavailable": reason(error)}
            say(f"  {name} could not be measured: {reason(error)}")
        figures["seconds"][name] = time.perf_counter() - start
        say(f"  ({figures['seconds'][name]:.0f} s)")
        try:
            release(kitchen.lm)
        except RuntimeError as error:  # after an illegal access a GPU does nothing more in this process
            say(f"  The rest could not be measured: {reason(error)}")
            return


def carry(record: str, parts: Parts, figures: dict[str, Any], device: str | None) -> None:
    """Keep the parts of an earlier record of the same model that were not measured again, and where they are from."""
    before = results.load(record, results.slugify(results.device_name(device)))
    if before is None or before["figures"].get("model") != figures["model"]:
        return
    old = before["figures"]
    origin = {key: before.get(key) for key in ("date", "commit", "command")}
    for name in parts:
        if name not in figures and name in old:
            figures[name] = old[name]
            figures["carried"][name] = old.get("carried", {}).get(name, origin)
