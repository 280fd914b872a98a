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
        products = sum(
            one["seconds"] for one in gaps["heaviest"] if kind_of(one["name"]) == "matrix product"
        )
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
    """Rung → seconds of a decode step of one row on the recorded GPU, and the least that memory allows."""
    rungs = {one["name"]: one["tpot"] for one in entry["figures"].get("ladder", ()) if one.get("tpot")}
    shares = [one for one in entry["figures"].get("ladder", ()) if one.get("tpot") and one.get("share")]
    return (rungs, shares[-1]["tpot"] * shares[-1]["share"]) if shares else None


def kernels(entry: Mapping[str, Any]) -> Table:
    """Each kernel against the others of the recorded run: wins and losses."""
    words = texts.words(NOTEBOOK)
    rows: list[list[str | Badge]] = []
    for one in entry["figures"].get("kernels", ()):
        seconds = {name: value for name, value in one["seconds"].items() if value}
        others = {name: value for name, value in seconds.items() if name != "labkit"}
        if "labkit" not in seconds or not others:
            continue
        best = min(others, key=lambda name: others[name])
        shown = [duration(seconds[name]) if name in seconds else "–" for name in ("labkit", best)]
        rows.append([one["name"], shown[0], f"{shown[1]} ({best})", _against(seconds["labkit"], others[best])])
    rows.append(["", "", "", recorded(dict(entry))])
    return Table([words["kernel"], words["ours"], words["torch"], words["result"]], rows)


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


def ladder_floor(weight_bytes: float, kv_bytes: float, bandwidth: float) -> float:
    """The least seconds of a decode step: weights and cache read once."""
    return (weight_bytes + kv_bytes) / bandwidth


def gains(shares: Mapping[str, float]) -> dict[str, float]:
    """What the whole gains in the scenarios of `scenarios`, by Amdahl's law."""
    infinite = float("inf")
    other, product, gap = (shares[key] for key in ("other kernels", "matrix products", "gaps"))
    return {
        "fused_away": arithmetic.speedup([other], [infinite]),
        "products_twice": arithmetic.speedup([product], [2]),
        "no_gaps": arithmetic.speedup([gap], [infinite]),
        "all_three": arithmetic.speedup([other, product, gap], [infinite, 2, infinite]),
    }
