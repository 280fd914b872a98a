"""Tables of notebook 05: where a token's time goes, what a kernel touched, what a graph keeps, the ladder, claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.course import texts
from labkit.course.display import Badge, Table, measured_here, recorded
from labkit.course.ledger import Rung
from labkit.course.plots.fuse_kernels import kind_of
from labkit.course.tables.cache import size
from labkit.fuse import arithmetic
from labkit.timing import duration

NOTEBOOK = "05_fuse"


@dataclass(frozen=True)
class Parts:
    """Where the time of one token goes [s].

    Attributes:
        whole: the token.
        products, others: kernels at work, matrix products and all others.
        kernels: how many run.
        floor: reading the weights once.
    """

    whole: float
    products: float
    others: float
    kernels: int
    floor: float

    @property
    def busy(self) -> float:
        """Seconds in which a kernel is at work."""
        return self.products + self.others

    @property
    def shares(self) -> dict[str, float]:
        """Of the whole: matrix products, all other kernels, and what no kernel fills."""
        idle = max(0.0, self.whole - self.busy)
        return {
            "matrix products": self.products / self.whole,
            "other kernels": self.others / self.whole,
            "gaps": idle / self.whole,
        }

    @classmethod
    def of_record(cls, entry: Mapping[str, Any]) -> Parts:
        """Of a recorded `labkit bench profile`."""
        figures = entry["figures"]
        gaps = figures["gaps"]
        tokens = gaps["tokens"]
        products = sum(one["seconds"] for one in gaps["heaviest"] if kind_of(one["name"]) == "matrix product")
        whole = gaps["untraced_seconds"] / tokens
        return cls(
            whole=whole,
            products=products / tokens,
            others=(gaps["busy_seconds"] - products) / tokens,
            kernels=round(gaps["kernels_per_token"]),
            floor=figures["floors"]["tpot"],
        )


def wait(parts: Parts, entry: Mapping[str, Any]) -> Table:
    """One token of the plain loop on the recorded GPU: the floor, the kernels, and the rest."""
    words = texts.words(NOTEBOOK)
    rows: list[list[str | Badge]] = [
        [name, duration(seconds), f"{seconds / parts.whole:.0%}"]
        for name, seconds in (
            (words["floor_weights"], parts.floor),
            (words["busy"].format(kernels=parts.kernels), parts.busy),
            (words["products"], parts.products),
            (words["others"], parts.others),
            (words["idle"], max(0.0, parts.whole - parts.busy)),
            (words["whole"], parts.whole),
        )
    ]
    rows.append(["", "", recorded(dict(entry))])
    return Table([words["quantity"], words["seconds"], words["share"]], rows)


def scenarios(found: Mapping[str, float]) -> Table:
    """What the whole would gain; `found` is scenario key → speedup."""
    words = texts.words(NOTEBOOK)
    return Table(
        [words["scenario"], words["whole_faster"]],
        [[words[key], f"{gain:.2f} ×"] for key, gain in found.items()],
    )


def norm(sizes: Mapping[int, tuple[int, int]], weights: int) -> Table:
    """Bytes of residual and norm by tokens, (unfused, fused), beside the weights of the layer."""
    words = texts.words(NOTEBOOK)
    rows = [
        [f"{tokens:,}", size(apart), size(fused), f"{1 - fused / apart:.0%}", size(weights)]
        for tokens, (apart, fused) in sizes.items()
    ]
    head = ("norm_size", "norm_unfused", "norm_fused", "norm_gain", "norm_weights")
    return Table([words[key] for key in head], rows)


def touched(read: Mapping[str, int], written: Mapping[str, int], sizes: Mapping[str, int]) -> Table:
    """Bytes that a kernel read and wrote through each of its tensors, beside the tensor's size."""
    words = texts.words(NOTEBOOK)
    rows = [[name, *(f"{of.get(name, 0):,}" for of in (read, written, sizes))] for name in sizes]
    return Table([words[key] for key in ("moved_by", "read", "written", "is_size")], rows)


def switches(rows: Sequence[tuple[str, int, float, float]]) -> Table:
    """Each part alone: operators of a step, its time, and how far the logits moved."""
    words = texts.words(NOTEBOOK)
    shown = [[name, f"{count:,}", duration(seconds), f"{off:.1e}"] for name, count, seconds, off in rows]
    return Table([words[key] for key in ("part", "operators", "a_step", "largest")], shown)


def captures(rows: Sequence[tuple[str, str, str, str]]) -> Table:
    """What a capture does with pieces of work: (key, result at capture, replayed, run anew)."""
    words = texts.words(NOTEBOOK)
    shown = []
    for key, first, again, anew in rows:
        right = words["refused"] if first == words["refused"] else words["yes" if again == anew else "no"]
        shown.append([words[key], first, again, anew, right])
    return Table([words[key] for key in ("work", "at_capture", "replayed", "wanted", "verdict")], shown)


def recorded_ladder(entry: Mapping[str, Any]) -> tuple[dict[str, float], float] | None:
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
    "graph alone": "rung_graph_alone",
    "fused kernels": "rung_kernels",
    "merged projections": "rung_merged",
    "everything": "rung_graph",
}
"""Rungs of the record → words of the notebook."""


def kernels(entry: Mapping[str, Any]) -> Table | None:
    """Each kernel against the best of the others in the recorded run: wins and losses."""
    words = texts.words(NOTEBOOK)
    rows: list[list[str | Badge]] = []
    for one in entry["figures"].get("kernels", {}).get("cases", ()):
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
        step: seconds of a decode step, unfused and fused.
        attention: tokens of a prompt → how many times faster fused attention is.
    """

    plain: Rung | None
    now: Rung | None
    step: tuple[float, float] | None
    attention: tuple[int, float] | None
    peers: str = "–"


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
    if one.plain is None or one.now is None or not one.plain.tpot or not one.now.tpot:
        return words["no_plain"]
    before, after = 1 / one.plain.tpot, 1 / one.now.tpot
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


def recorded_figures(rungs: Mapping[str, Rung], entry: Mapping[str, Any] | None) -> Figures | None:
    """What the recorded GPU says to the claims: its ledger by notebook, and its run of `labkit bench fuse`."""
    if not rungs:
        return None
    step, attention, peers = None, None, "–"
    if entry is not None:
        figures = entry["figures"]
        found = figures.get("ladder", {}).get("rungs", {})
        if all(found.get(name, {}).get("tpot") for name in ("plain", "everything")):
            step = (found["plain"]["tpot"], found["everything"]["tpot"])
            paces = {name: one["tpot"] for name, one in figures.get("peers", {}).items() if one.get("tpot")}
            if paces:
                best = min(paces, key=lambda name: paces[name])
                peers = texts.words(NOTEBOOK)["best_peer"].format(
                    name=best, rate=1 / paces[best], ours=1 / step[1]
                )
    return Figures(rungs.get("01_profile"), rungs.get(NOTEBOOK), step, attention, peers)


def moved_title(tokens: int, traffic: Sequence[arithmetic.Traffic], weights: int) -> str:
    """What fusion saves at a number of tokens, weights included."""
    apart, fused = (
        weights + sum(sizes) for sizes in zip(*((one.unfused, one.fused) for one in traffic), strict=True)
    )
    launched, left = (sum(counts) for counts in zip(*(one.kernels for one in traffic), strict=True))
    return texts.words(NOTEBOOK)["moved_title"].format(
        tokens=tokens, before=size(apart), after=size(fused), gain=apart / fused, kernels=launched, fused=left
    )
