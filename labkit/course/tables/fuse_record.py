"""What `labkit bench fuse` recorded, and the claims of notebook 05: claimed, measured here, recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from labkit.course import texts
from labkit.course.display import Badge, Table, measured_here, recorded
from labkit.course.ledger import Rung
from labkit.timing import duration

NOTEBOOK = "05_fuse"


def ladder(entry: Mapping[str, Any]) -> tuple[dict[str, float], float] | None:
    """Rung → seconds of a decode step of one row on the recorded GPU, and the least that memory allows.

    The rungs are those of `labkit bench fuse`, the peers of the same run among them.
    """
    words, figures = texts.words(NOTEBOOK), entry["figures"]
    ladder, peers = figures.get("ladder", {}), figures.get("peers", {})
    if not isinstance(ladder.get("rungs"), dict):
        return None
    found = {
        **{PEER[key]: peers.get(key, {}) for key in PEER},
        **{RECORDED[key]: ladder["rungs"].get(key, {}) for key in RECORDED},
    }
    paces = {words[key]: one["tpot"] for key, one in found.items() if one.get("tpot")}
    return (paces, ladder["bytes_a_step"] / figures["ceilings"]["bandwidth"]) if paces else None


PEER = {"generate": "rung_plain", "generate, static cache": "rung_compiled"}
RECORDED = {
    "plain": "rung_engine",
    "fused kernels": "rung_kernels",
    "merged projections": "rung_merged",
    "everything": "rung_graph",
    "graph alone": "rung_graph_alone",
    "torch.compile, graph": "rung_compiled_graph",
}
"""Rungs of the record → words of the notebook: the ladder, then what stands beside it."""


def kernels(entry: Mapping[str, Any]) -> Table | None:
    """Each kernel against the best of the others in the recorded run, at the fewest and the most tokens."""
    words = texts.words(NOTEBOOK)
    rows: list[list[str | Badge]] = []
    cases = entry["figures"].get("kernels", {}).get("cases", ())
    for one in cases:
        sizes = [each["tokens"] for each in cases if each["shape"] == one["shape"]]
        if one["tokens"] not in (min(sizes), max(sizes)):
            continue
        seconds = {name: each["seconds"] for name, each in one["contenders"].items() if "seconds" in each}
        others = {name: value for name, value in seconds.items() if name != "labkit"}
        if "labkit" not in seconds or not others:
            continue
        best = min(others, key=lambda name: others[name])
        name = f"{one['kernel']}, {one['shape']}"
        there = f"{duration(others[best])} ({best})"
        rows.append(
            [
                name,
                f"{one['tokens']:,}",
                duration(seconds["labkit"]),
                there,
                _against(seconds["labkit"], others[best]),
            ]
        )
    if not rows:
        return None
    rows.append(["", "", "", "", recorded(dict(entry))])
    return Table([words[key] for key in ("kernel", "norm_size", "ours", "best_other", "result")], rows)


def steps(entry: Mapping[str, Any]) -> Table | None:
    """What one decode step of each recorded rung puts on the timeline; None where it was not traced."""
    words = texts.words(NOTEBOOK)
    rungs = entry["figures"].get("ladder", {}).get("rungs", {})
    rows: list[list[str | Badge]] = []
    for key, name in RECORDED.items():
        found = rungs.get(key, {}).get("step", {})
        if "kernels" in found:
            counts = [f"{found[one]:,.0f}" for one in ("kernels", "launches")]
            rows.append([words[name], *counts, duration(found["busy"]), f"{found['gap_share']:.0%}"])
    if not rows:
        return None
    rows.append(["", "", "", "", recorded(dict(entry))])
    head = ("rung", "kernels_a_step", "launches_a_step", "busy_a_step", "gap_share")
    return Table([words[key] for key in head], rows)


def service(entry: Mapping[str, Any]) -> Table | None:
    """The recorded engine, plain and with everything: first tokens of prompts, and a load of many requests."""
    words, found = texts.words(NOTEBOOK), entry["figures"]
    rows: list[list[str | Badge]] = []
    prompts = found.get("ttft", ())
    for one in prompts if isinstance(prompts, list) else ():
        pair = [one["rungs"].get(name, {}) for name in ("plain", "everything")]
        if all("ttft" in each for each in pair):
            said = [f"{duration(each['ttft'])} (MFU {each['mfu']:.0%})" for each in pair]
            ratio = pair[0]["ttft"] / pair[1]["ttft"]
            rows.append([words["first_of"].format(tokens=one["prompt"]), *said, f"{ratio:.2f} ×"])
    closed = found.get("load", {}).get("closed", {})
    pair = [closed.get(name, {}) for name in ("plain", "everything")]
    if all("tokens_per_second" in each for each in pair):
        rates = [each["tokens_per_second"] for each in pair]
        said = [f"{rate:,.0f} tokens/s" for rate in rates]
        name = words["load_of"].format(requests=found["load"]["requests"])
        rows.append([name, *said, f"{rates[1] / rates[0]:.2f} ×"])
    if not rows:
        return None
    rows.append(["", "", "", recorded(dict(entry))])
    return Table([words["service"], words["rung_engine"], words["everything"], words["gain"]], rows)


def _against(ours: float, theirs: float) -> str:
    words, ratio = texts.words(NOTEBOOK), theirs / ours
    if abs(ratio - 1) < 0.03:
        return words["even"]
    return words["win"].format(ratio=ratio) if ratio > 1 else words["loss"].format(ratio=1 / ratio)


@dataclass(frozen=True)
class Figures:
    """What one machine says to the claims; None where it was not measured.

    Args:
        plain, now: the ledger's rungs, the plain model and the newest.
        step: seconds of a decode step, as it is and with fused kernels and merged projections, without graphs.
        attention: tokens of a prompt → how many times faster fused attention is.
        ladder: time per output token at both ends of this notebook's ladder, where there are no such rungs.
    """

    plain: Rung | None
    now: Rung | None
    step: tuple[float, float] | None
    attention: tuple[int, float] | None
    peers: str = "–"
    ladder: tuple[float, float] | None = None


def claims(model: str, here: Figures, there: Figures | None, entry: Mapping[str, Any] | None) -> Table:
    """Claimed, measured here, recorded."""
    words = texts.words(NOTEBOOK)
    columns = [here] + ([there] if there else [])
    said = [
        ("claim_15a", words["says_15a"], [_pace(one) for one in columns]),
        ("claim_15a_ttft", "–", [_first(one) for one in columns]),
        ("claim_16", words["says_16"], [_step(one) for one in columns]),
        ("claim_16_attention", words["says_16_attention"], [_attention(one) for one in columns]),
        ("claim_17", words["says_17"], [one.peers for one in columns]),
    ]
    rows: list[list[str | Badge]] = [[words[key], claim, *values] for key, claim, values in said]
    badges: list[str | Badge] = [measured_here()]
    if there and entry:
        badges.append(recorded(dict(entry)))
    rows.append(["", "", *badges])
    head = [words["claim"], words["claimed"], words["here"].format(model=model)]
    return Table(head + (["labcoder@7b"] if there else []), rows)


def _pace(one: Figures) -> str:
    words = texts.words(NOTEBOOK)
    paces = (one.plain and one.plain.tpot, one.now and one.now.tpot)
    first, last = paces if all(paces) else one.ladder or (None, None)
    if not first or not last:
        return words["no_plain"]
    before, after = 1 / first, 1 / last
    return words["before_after"].format(before=f"{before:,.0f}", after=f"{after:,.0f}", ratio=after / before)


def _first(one: Figures) -> str:
    words = texts.words(NOTEBOOK)
    if one.plain is None or one.now is None or not one.plain.ttft or not one.now.ttft:
        return words["no_plain"]
    before, after = one.plain.ttft, one.now.ttft
    return words["before_after"].format(before=duration(before), after=duration(after), ratio=before / after)


def _step(one: Figures) -> str:
    if one.step is None:
        return "–"
    before, after = one.step
    said = texts.words(NOTEBOOK)["before_after"]
    return said.format(before=duration(before), after=duration(after), ratio=before / after)


def _attention(one: Figures) -> str:
    if one.attention is None:
        return "–"
    return texts.words(NOTEBOOK)["faster_at"].format(tokens=one.attention[0], ratio=one.attention[1])


def figures(rungs: Mapping[str, Rung], entry: Mapping[str, Any] | None) -> Figures | None:
    """What the recorded GPU says to the claims: its ledger by notebook, and its run of `labkit bench fuse`."""
    if not rungs:
        return None
    step, attention, peers = None, None, "–"
    if entry is not None:
        there = entry["figures"]
        found = there.get("ladder", {}).get("rungs", {})
        plain, merged, last = (
            found.get(name, {}).get("tpot") for name in ("plain", "merged projections", "everything")
        )
        step = (plain, merged) if plain and merged else None
        paces = {name: one["tpot"] for name, one in there.get("peers", {}).items() if one.get("tpot")}
        if paces and last:
            words, best = texts.words(NOTEBOOK), min(paces, key=lambda name: paces[name])
            name = words["rung_compiled" if "static" in best else "rung_plain"]
            peers = words["best_peer"].format(name=name, rate=1 / paces[best], ours=1 / last)
    return Figures(rungs.get("01_profile"), rungs.get(NOTEBOOK), step, attention, peers)
