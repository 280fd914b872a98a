"""The ledger: the learner's ladder from the plain model to the finished service, one rung a notebook.

Kept with their progress and shown at every opening, with the ladder recorded on a big GPU beside it.
"""

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit import results
from labkit.course import store, texts
from labkit.course.display import RECORDED, Badge, Note, Table, measured_here
from labkit.course.display import show as _display
from labkit.course.predictions import quantity
from labkit.errors import LabkitError

FIGURES: dict[
    str, tuple[tuple[str, float], ...]
] = {  # field → units to show it in, the largest that fits first
    "ttft": (("ms", 1e-3),),
    "tpot": (("ms", 1e-3),),
    "throughput": (("tokens/s", 1.0),),
    "memory": (("GB", 1e9), ("MB", 1e6)),
    "quality": (("bits/byte", 1.0),),
    "cost": (("$/M tokens", 1.0),),
}


@dataclass(frozen=True)
class Rung:
    """One state of the service. A figure that was not measured is None.

    Attributes:
        name: what was done, such as "plain model" or "int8 weights".
        model, device: what it ran on.
        ttft, tpot: time to first token and time per output token [s].
        throughput: output tokens of all requests together [tokens/s].
        memory: peak memory of weights and cache [bytes].
        quality: bits per byte on the fixed evaluation text, lower is better.
        cost: price of a million output tokens [$].
        badge: where the figures come from.
        notebook: which notebook added it.
    """

    name: str
    model: str
    device: str
    ttft: float | None = None
    tpot: float | None = None
    throughput: float | None = None
    memory: float | None = None
    quality: float | None = None
    cost: float | None = None
    badge: str = ""
    notebook: str = ""


def add(name: str, *, model: str, device: str, notebook: str = "", **figures: float | None) -> None:
    """Put a rung on the ladder; the same name again replaces it, in its place.

    Args:
        name, model, device, notebook: see `Rung`.
        figures: any of ttft, tpot [s], throughput [tokens/s], memory [bytes], quality [bits/byte], cost [$/M tokens].

    Raises:
        LabkitError: for a figure of another name, or one that is no finite number.
    """
    rung = _rung(name, model, device, notebook, str(measured_here().text), figures)

    def change(content: dict[str, Any]) -> None:
        content["ledger"] = _replaced(content["ledger"], dataclasses.asdict(rung))

    content = store.update(change)
    print(texts.text("ledger.added", name=name, count=len(content["ledger"])))


def rungs() -> tuple[Rung, ...]:
    """The learner's own rungs, oldest first."""
    return tuple(_read(entry) for entry in store.read()["ledger"])


def recorded(device_slug: str = "nvidia-h200") -> tuple[Rung, ...]:
    """The ladder recorded on a big GPU; empty when there is no record."""
    entry = results.load("ledger", device_slug)
    if entry is None:
        return ()
    badge = results.badge(entry)
    return tuple(dataclasses.replace(_read(rung), badge=badge) for rung in entry["figures"]["rungs"])


def record(name: str, *, model: str, notebook: str = "", **figures: float | None) -> Path:
    """Put a rung on the recorded ladder of this machine's device (data/results/<device>/ledger.json)."""
    device = results.device_name()
    known = results.load("ledger", results.slugify(device))
    old = known["figures"]["rungs"] if known else []
    rung = dataclasses.asdict(_rung(name, model, device, notebook, "", figures))
    return results.record("ledger", {"rungs": _replaced(old, rung)})


def show() -> None:
    """The ledger so far: a table and, once something is measured, a picture of both ladders."""
    mine, theirs = rungs(), recorded()
    if not mine:
        _display(Note(texts.text("ledger.empty")))
    if mine or theirs:
        _display(table(mine, theirs))
    if any(rung.tpot or rung.ttft for rung in mine + theirs):
        from labkit.course.ledger_picture import picture
        from labkit.course.widgets import show_figure

        show_figure(picture(mine, theirs), texts.text("ledger.picture"))


def table(mine: tuple[Rung, ...], theirs: tuple[Rung, ...]) -> Table:
    """Both ladders, the recorded one first, one row a rung; a column that nobody measured yet is left out."""
    every = theirs + mine
    used = [field for field in FIGURES if any(getattr(rung, field) is not None for rung in every)]
    headers = [texts.text("ledger.rung"), *(texts.text(f"ledger.{field}") for field in used)]
    headers += [texts.text("ledger.model"), texts.text("ledger.source")]
    rows = []
    for rung in every:
        badge = measured_here() if rung in mine else Badge(rung.badge, RECORDED)
        rows.append([rung.name, *(_shown(rung, field) for field in used), rung.model, badge])
    places = [{(rung.model, rung.device) for rung in ladder} for ladder in (mine, theirs)]
    apart = mine and theirs and places[0] != places[1]
    caption = texts.text("ledger.two_ladders" if apart else "ledger.caption")
    return Table(headers, rows, caption)


def _shown(rung: Rung, field: str) -> str:
    value = getattr(rung, field)
    if value is None:
        return "–"
    unit, size = next((pair for pair in FIGURES[field] if value >= pair[1]), FIGURES[field][-1])
    return quantity(value / size, unit)


def _rung(name: str, model: str, device: str, notebook: str, badge: str, figures: dict[str, Any]) -> Rung:
    """A rung of validated figures."""
    if not name.strip():
        raise LabkitError("A rung needs a name.", 'Say what was done, such as "int8 weights".')
    for field, value in figures.items():
        if field not in FIGURES:
            raise LabkitError(f"The ledger has no figure {field!r}.", f"It keeps {', '.join(FIGURES)}.")
        if value is not None and not math.isfinite(value):
            raise LabkitError(f"{field} of {name!r} is {value}.", "Leave out what was not measured.")
    numbers = {field: None if value is None else float(value) for field, value in figures.items()}
    return Rung(name, model, device, badge=badge, notebook=notebook, **numbers)


def _replaced(entries: list[dict[str, Any]], new: dict[str, Any]) -> list[dict[str, Any]]:
    """`entries` with the one of the same name replaced, or `new` at the end."""
    if any(entry.get("name") == new["name"] for entry in entries):
        return [new if entry.get("name") == new["name"] else entry for entry in entries]
    return [*entries, new]


def _read(entry: dict[str, Any]) -> Rung:
    """A kept rung; fields of a newer version are ignored, missing or damaged ones are empty."""
    fields: dict[str, Any] = {
        key: str(entry.get(key, "")) for key in ("name", "model", "device", "badge", "notebook")
    }
    for field in FIGURES:
        value = entry.get(field)
        fields[field] = float(value) if isinstance(value, int | float) else None
    return Rung(**fields)
