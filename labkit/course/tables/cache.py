"""Tables of notebook 04: three caches side by side, what was recorded beside what was measured, claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.course import texts
from labkit.course.display import Badge, Table, measured_here, recorded
from labkit.course.predictions import quantity
from labkit.timing import duration

NOTEBOOK = "04_cache"
NEEDED = 10e9
"""Bytes that a claim says a 7B's long context takes."""
CLAIMED = {
    "14": "10\N{NO-BREAK SPACE}GB",
    "15_memory": "48 → 22\N{NO-BREAK SPACE}GB (2.2 ×)",
    "15_throughput": "2.3 ×",
    "15_prefix": None,
    "15_lossless": None,
}


@dataclass(frozen=True)
class Trial:
    """One cache that ran a load.

    Args:
        seconds: of the run.
        reserved, used: bytes set aside for its rows, and bytes of those that hold tokens, at its end.
        steps: forward passes.
    """

    seconds: float
    reserved: int
    used: int
    steps: int

    @property
    def empty(self) -> float:
        """Share of the reserved memory that holds no token."""
        return 1 - self.used / self.reserved if self.reserved else 0.0


@dataclass(frozen=True)
class Figures:
    """What one machine says to the claims.

    Args:
        model: its name.
        token_bytes: KV bytes of one token of a 7B in 16 bits.
        contiguous, paged: bytes of the same conversations under an 8k limit.
        gain: throughput of paged over contiguous in the same memory.
        batch: rows at most, contiguous and paged, in the runs that `gain` compares.
        cold, warm: TTFT with a prefix computed and found [s].
        shared: its tokens.
        lossless: best ratio of a lossless codec on labcoder's keys and values.
        shape: whose tokens `token_bytes` counts.
    """

    model: str
    token_bytes: int
    contiguous: float
    paged: float
    gain: float
    batch: tuple[int, int]
    cold: float
    warm: float
    shared: int
    lossless: float
    shape: str

    @classmethod
    def of_record(cls, entry: Mapping[str, Any]) -> Figures:
        """The figures of a recorded `labkit bench cache`; its token_bytes are those of the model it ran."""
        figures = entry["figures"]
        space, prefix = figures["room"], figures["prefix"]
        rates = {kind: one["tokens_per_second"] for kind, one in figures["room_throughput"].items()}
        return cls(
            model=figures["model"],
            token_bytes=figures["token_bytes"]["plain"],
            contiguous=space["contiguous_bytes"],
            paged=space["paged_bytes"],
            gain=rates["paged"] / rates["contiguous"],
            batch=(space["largest_batch"]["contiguous"], space["largest_batch"]["paged"]),
            cold=prefix["ttft"]["cold"],
            warm=prefix["ttft"]["warm"],
            shared=prefix["shared"],
            lossless=max(one["ratio"] for one in figures["compression"]["lossless"]),
            shape=figures["model"],
        )


def size(count: float) -> str:
    """Bytes to three figures in the largest unit that fits."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:,.3g}\N{NO-BREAK SPACE}{unit}"
    return f"{count:,.0f}\N{NO-BREAK SPACE}B"


def caches(trials: Mapping[str, Trial]) -> Table:
    """One row for each cache that ran the same load."""
    words = texts.words(NOTEBOOK)
    rows = [
        [name, duration(one.seconds / one.steps), size(one.reserved), size(one.used), f"{one.empty:.0%}"]
        for name, one in trials.items()
    ]
    return Table([words[key] for key in ("cache", "a_step", "reserved", "used", "empty")], rows)


def room(model: str, here: Mapping[str, Any], entry: Mapping[str, Any] | None) -> Table:
    """Memory and largest batch under an 8k limit, contiguous and paged; `here` is of `cache.bench.room`."""
    words = texts.words(NOTEBOOK)
    columns = [here] + ([entry["figures"]["room"]] if entry else [])
    batches = [one["largest_batch"] for one in columns]
    rows: list[list[str | Badge]] = [
        [words["room_rows"], *(f"{one['rows']:,}" for one in columns)],
        [words["room_contiguous"], *(size(one["contiguous_bytes"]) for one in columns)],
        [words["room_paged"], *(size(one["paged_bytes"]) for one in columns)],
        [words["room_ratio"], *(f"{one['contiguous_bytes'] / one['paged_bytes']:.2f} ×" for one in columns)],
        [words["room_batch"], *(_grown(one["contiguous"], one["paged"]) for one in batches)],
    ]
    if entry:
        rates = entry["figures"]["room_throughput"]
        both = (rates[kind]["tokens_per_second"] for kind in ("contiguous", "paged"))
        rows.append([words["room_rate"], "–", _grown(*both)])
    rows.append(["", *_badges(entry)])
    return Table(_headers(model, entry), rows, words["room"])


def _grown(before: float, after: float) -> str:
    return f"{before:,.0f} → {after:,.0f} ({after / before:.2f} ×)"


def warm_and_cold(model: str, here: Mapping[str, Any], entry: Mapping[str, Any] | None) -> Table:
    """TTFT of shared prefixes, computed and found; `here` is of `cache.bench.prefix`. Recorded are two lengths."""
    words = texts.words(NOTEBOOK)
    columns = [here] + ([entry["figures"][key] for key in ("prefix", "long_prefix")] if entry else [])
    pairs = [(one["ttft"]["cold"], one["ttft"]["warm"]) for one in columns]
    rows: list[list[str | Badge]] = [
        [words["prefix_tokens"], *(f"{one['shared']:,}" for one in columns)],
        [words["cold"], *(duration(cold) for cold, _ in pairs)],
        [words["warm"], *(duration(warm) for _, warm in pairs)],
        [words["cold_over_warm"], *(f"{cold / warm:.2g} ×" for cold, warm in pairs)],
        ["", *(measured_here() if column is here else recorded(dict(entry or {})) for column in columns)],
    ]
    headers = [model] + [entry["figures"]["model"]] * (len(columns) - 1) if entry else [model]
    return Table(["", *headers], rows)


def kernels(entry: Mapping[str, Any]) -> Table:
    """Recorded reading rates of paged decode attention."""
    words = texts.words(NOTEBOOK)
    rows: list[list[str | Badge]] = [
        [one["shape"], f"{one['rate'] / 1e9:,.0f}", f"{one['share']:.0%}"]
        for one in entry["figures"]["kernel"]
    ]
    headers = [words["kernel_shape"], "GB/s", words["kernel_share"]]
    return Table(headers, [*rows, ["", "", recorded(dict(entry))]], words["kernels"])


def slowest(entry: Mapping[str, Any]) -> str:
    """A sentence about the recorded shape that reads slowest, and all others."""
    shares = sorted((one["share"], one["shape"]) for one in entry["figures"]["kernel"])
    (share, shape), rest = shares[0], shares[min(1, len(shares) - 1)][0]
    return texts.words(NOTEBOOK)["kernel_slowest"].format(shape=shape, share=share, rest=rest)


def compressions(found: Mapping[str, Any], entry: Mapping[str, Any] | None) -> Table:
    """What labcoder's keys and values go into: bytes, and what it costs in quality."""
    words = texts.words(NOTEBOOK)
    sources = [found] + ([entry["figures"]["compression"]] if entry else [])
    rows: list[list[str | Badge]] = [
        [words["int8_bytes"], *(f"{one['int8']['bytes_share']:.0%}" for one in sources)],
        [words["int8_kl"], *(f"{one['int8']['kl']:.1e}" for one in sources)],
        [words["int8_top1"], *(_same(one["int8"]["top1_agreement"]) for one in sources)],
    ]
    for index, one in enumerate(found["lossless"]):
        shares = [source["lossless"][index] for source in sources]
        name = words["lossless"].format(codec=one["codec"])
        rows.append([name, *(f"{1 / share['ratio']:.0%}" for share in shares)])
    rows.append(["", *_badges(entry)])
    return Table(["", *(words[key] for key in ("labcoder_kv", "labcoder_kv_there")[: len(sources)])], rows)


def _same(share: float) -> str:
    """A share of choices that stay, and how rare the others are."""
    words = texts.words(NOTEBOOK)
    if share >= 1:
        return words["all_same"].format(share=share)
    return words["one_in"].format(share=share, count=round(1 / (1 - share)))


def levels(model: str, here: Mapping[str, Any], entry: Mapping[str, Any] | None) -> Table:
    """TTFT of a shared prefix by where it comes from; `here` is of `cache.bench.prefix` with a host store."""
    words = texts.words(NOTEBOOK)
    columns = [here] + ([entry["figures"]["host_tier"]] if entry else [])
    rows: list[list[str | Badge]] = [[words["prefix_tokens"], *(f"{one['shared']:,}" for one in columns)]]
    for kind in ("cold", "warm", "host"):
        rows.append([words[kind], *(duration(one["ttft"][kind]) for one in columns)])
    factors = (one["ttft"]["cold"] / one["ttft"]["host"] for one in columns)
    rows.append([words["cold_over_host"], *(quantity(factor, "×") for factor in factors)])
    return Table(_headers(model, entry), [*rows, ["", *_badges(entry)]])


def claims(here: Figures, entry: Mapping[str, Any] | None) -> Table:
    """Claims 14 and 15: claimed, measured here, recorded."""
    words = texts.words(NOTEBOOK)
    said = [_claims_of(here)] + ([_claims_of(Figures.of_record(entry))] if entry else [])
    rows: list[list[str | Badge]] = [
        [words[f"claim_{key}"], claimed or words[f"says_{key}"], *(one[key] for one in said)]
        for key, claimed in CLAIMED.items()
    ]
    rows.append(["", "", *_badges(entry)])
    return Table([words["claim"], words["claimed"], *_headers(here.model, entry)[1:]], rows)


def _claims_of(one: Figures) -> dict[str, str]:
    """What one set of figures says to each claim."""
    words = texts.words(NOTEBOOK)
    batch = words["batch"].format(before=one.batch[0], after=one.batch[1])
    return {
        "14": words["reached"].format(shape=one.shape, tokens=f"{NEEDED / one.token_bytes:,.0f}"),
        "15_memory": f"{size(one.contiguous)} → {size(one.paged)} ({one.contiguous / one.paged:.2f} ×)",
        "15_throughput": f"{one.gain:.2f} × ({batch})",
        "15_prefix": f"TTFT {duration(one.cold)} → {duration(one.warm)}",
        "15_lossless": words["bytes_left"].format(share=1 / one.lossless),
    }


def _badges(entry: Mapping[str, Any] | None) -> Sequence[Badge]:
    return [measured_here()] + ([recorded(dict(entry))] if entry else [])


def _headers(model: str, entry: Mapping[str, Any] | None) -> list[str]:
    return ["", model, *([entry["figures"]["model"]] if entry else [])]
