"""What `labkit bench compress`, `prune` and `distil` recorded, and the claims of notebook 02."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Any

from labkit.course import texts
from labkit.course.display import Badge, Table, measured_here, recorded
from labkit.course.plots.compress_models import Place
from labkit.course.probe import Reading
from labkit.course.tables.cache import size
from labkit.course.tables.compress import NOTEBOOK, share, worse
from labkit.quality import Interval
from labkit.timing import duration


def precisions(entry: Mapping[str, Any], qualities: Mapping[str, Reading]) -> Table | None:
    """The table that articles print: precision, memory, tokens/s of one request; None where it was not recorded.

    Args:
        qualities: by precision, of labcoder.
    """
    words, figures = texts.words(NOTEBOOK), entry["figures"]
    rows: list[list[str | Badge]] = []
    for part in ("precision", "bitsandbytes", "torchao"):
        for name, one in paced(figures.get(part)).items():
            stored = size(one["weight_bytes"]) if "weight_bytes" in one else "–"
            said = worse(qualities[name]) if name in qualities else "–"
            rate, part_of = one["tokens_per_second"], one.get("share")
            of_roof = f"{part_of:.0%}" if part_of is not None else "–"
            rows.append([name, stored, duration(one["tpot"]), f"{rate:,.0f}", of_roof, said])
    if not rows:
        return None
    rows.append(["", "", "", "", "", recorded(dict(entry))])
    heads = ("precision", "weights", "a_token", "tokens_s", "of_roof", "ppl_labcoder")
    return Table([words[key] for key in heads], rows, figures["model"])


def paced(part: Any) -> dict[str, dict[str, Any]]:
    """Of a part of the record, what was measured."""
    found = part if isinstance(part, dict) else {}
    return {name: one for name, one in found.items() if isinstance(one, dict) and "tpot" in one}


def curve(entry: Mapping[str, Any]) -> tuple[str, dict[str, dict[int, float]]] | None:
    """(the model's own precision, precision → rows → seconds of a decode step); None where it was not recorded."""
    figures = entry["figures"]
    found = figures.get("batch", {}).get("seconds")
    if not found or figures.get("own") not in found:
        return None
    lines = {
        name: {int(rows): seconds for rows, seconds in line.items()}
        for name, line in found.items()
        if set(line) == set(found[figures["own"]])
    }
    return figures["own"], lines


def crossing(own: str, seconds: Mapping[str, Mapping[int, float]], name: str) -> int | None:
    """The fewest rows at which a precision is no longer faster than the model's own; None if it always is."""
    return next((rows for rows in sorted(seconds[own]) if seconds[name][rows] >= seconds[own][rows]), None)


def qualities(entry: Mapping[str, Any]) -> Table | None:
    """labcoder's quality on the larger text, by format and method."""
    words, found = texts.words(NOTEBOOK), entry["figures"].get("quality", {})
    rows: list[list[str | Badge]] = []
    for name, one in found.get("methods", {}).items():
        if "perplexity_change" in one:
            read = Interval(**one["perplexity_change"])
            numbers = [f"{1e3 * one['kl']['mean']:.1f}", f"{one['top1']['mean']:.1%}"]
            rows.append([name, size(one["weight_bytes"]), share(read), *numbers])
    if not rows:
        return None
    rows.append(["", "", "", "", recorded(dict(entry))])
    heads = [words[key] for key in ("precision", "weights", "ppl", "kl", "same")]
    return Table(heads, rows, words["large_text"].format(tokens=found["tokens"]))


def pruning(entry: Mapping[str, Any]) -> Table | None:
    """Quality after each stage by how units were chosen: the mean over seeds, with the lowest and highest."""
    words, summary = texts.words(NOTEBOOK), entry["figures"].get("summary")
    if not summary:
        return None
    stages = list(next(iter(summary.values())))
    rows: list[list[str | Badge]] = []
    for kind, found in summary.items():
        cells = [
            f"{found[stage]['mean']:.2f} ({found[stage]['low']:.2f} … {found[stage]['high']:.2f})"
            for stage in stages
        ]
        rows.append([words[f"by_{kind}"], *cells])
    rows.append(["", *[""] * (len(stages) - 1), recorded(dict(entry))])
    return Table(
        [words["chosen_by"], *(words[f"stage_{stage}"] for stage in stages)], rows, words["prune_caption"]
    )


def claims(
    model: str, here: Mapping[str, str], there: Mapping[str, str], entry: Mapping[str, Any] | None
) -> Table:
    """Claimed, measured here, recorded.

    Args:
        here, there: claim → what was measured.
    """
    words = texts.words(NOTEBOOK)
    rows: list[list[str | Badge]] = []
    for key in here:
        line: list[str | Badge] = [words[f"claim_{key}"], words[f"says_{key}"], here[key]]
        rows.append([*line, there.get(key, "–")] if entry else line)
    badges: list[str | Badge] = ["", "", measured_here()]
    rows.append([*badges, recorded(dict(entry))] if entry else badges)
    heads = [words["claim"], words["claimed"], words["here"].format(model=model)]
    return Table(heads + (["labcoder@7b"] if entry else []), rows)


def claim_6(figures: Mapping[str, Any], name: str) -> str:
    """Memory and speed of a recorded precision."""
    one = paced(figures.get("precision")).get(name)
    if one is None:
        return "–"
    rate = texts.words(NOTEBOOK)["memory_and_rate"]
    return rate.format(memory=size(one["weight_bytes"]), rate=one["tokens_per_second"])


def places(entry: Mapping[str, Any], losses: Mapping[str, float]) -> list[Place]:
    """The recorded precisions as points of the map.

    Args:
        losses: bits per byte above the plain model's, by precision, of labcoder.
    """
    figures = entry["figures"]
    return [
        Place(name, "plain" if name == figures["own"] else "bits", one["weight_bytes"], one["tokens_per_second"],
              losses.get(name, 0.0))
        for name, one in paced(figures.get("precision")).items()
        if name == figures["own"] or name in losses
    ]  # fmt: skip


def distilled(entry: Mapping[str, Any]) -> Table | None:
    """The recorded ablation: students of equal budget, and how each differs from matching outputs alone."""
    words, found = texts.words(NOTEBOOK), entry["figures"].get("ablation", {})
    if "summary" not in found:
        return None
    rows: list[list[str | Badge]] = []
    for name, one in found["summary"].items():
        bits, margin = one["bits_per_byte"], found["margins"].get(name)
        said = (
            words["base"]
            if margin is None
            else f"{margin['mean']:+.4f} ({margin['low']:+.4f} … {margin['high']:+.4f})"
        )
        rows.append(
            [
                name,
                f"{bits['mean']:.3f} ({bits['low']:.3f} … {bits['high']:.3f})",
                f"{one['share']['mean']:.1%}",
                said,
            ]
        )
    rows.append(["", "", "", recorded(dict(entry))])
    heads = ("taught_by", "bits_per_byte", "share_of_teacher", "against_outputs")
    return Table([words[key] for key in heads], rows, words["distil_caption"])


def students(entry: Mapping[str, Any]) -> Table | None:
    """The students that were trained longest: size, quality and speed beside the teacher's."""
    words, figures = texts.words(NOTEBOOK), entry["figures"]
    faster = figures.get("speed", {}).get("speedup", {})
    rows: list[list[str | Badge]] = []
    for name, one in figures.get("students", {}).items():
        if "share" not in one:
            continue
        gains = ", ".join(f"{rows_}: {gain:.2f} ×" for rows_, gain in faster.get(name, {}).items())
        rows.append(
            [name, f"{one['size']:.0%}", f"{one['share']:.1%}", f"{one['agreement']:.0%}", gains or "–"]
        )
    if not rows:
        return None
    rows.append(["", "", "", "", recorded(dict(entry))])
    heads = ("student", "size_share", "share_of_teacher", "same", "speedup_rows")
    return Table([words[key] for key in heads], rows)


def claim_9(figures: Mapping[str, Any]) -> str:
    """The best recorded student under half the size: size, share of the teacher's quality, speed at one row."""
    found = {name: one for name, one in figures.get("students", {}).items() if one.get("size", 1) < 0.5}
    if not found:
        return "–"
    best = max(found, key=lambda name: found[name]["share"])
    gain = figures.get("speed", {}).get("speedup", {}).get(best, {}).get("1")
    one = found[best]
    said = texts.words(NOTEBOOK)["student_is"]
    return said.format(share=one["size"], quality=one["share"], speed=gain if gain else math.nan)


def claim_10(figures: Mapping[str, Any]) -> str:
    """The recorded cut by gradients: perplexity over the whole model's, cut and recovered, and speed."""
    found, base = figures.get("summary", {}).get("taylor"), figures.get("base", {}).get("perplexity")
    taken = {name: statistics.median(each) for name, each in figures.get("speed", {}).items()}
    if not found or not base or not {"whole", "pruned"} <= set(taken):
        return "–"
    values = [found[stage]["mean"] / base for stage in ("cut", "recovered")]
    said = texts.words(NOTEBOOK)["pruned_is"]
    return said.format(cut=values[0], recovered=values[1], speed=taken["whole"] / taken["pruned"])
