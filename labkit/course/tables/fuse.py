"""Tables of notebook 05: where a token's time goes, what a kernel touched, what a graph keeps, the ladder, claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.course import texts
from labkit.course.display import Badge, Table, recorded
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


def moved_title(tokens: int, traffic: Sequence[arithmetic.Traffic], weights: int) -> str:
    """What fusion saves at a number of tokens, weights included."""
    apart, fused = (
        weights + sum(sizes) for sizes in zip(*((one.unfused, one.fused) for one in traffic), strict=True)
    )
    launched, left = (sum(counts) for counts in zip(*(one.kernels for one in traffic), strict=True))
    return texts.words(NOTEBOOK)["moved_title"].format(
        tokens=tokens, before=size(apart), after=size(fused), gain=apart / fused, kernels=launched, fused=left
    )
