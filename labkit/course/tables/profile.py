"""Tables of notebook 01: what was measured here beside the recorded run, and the claims beside both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from labkit.course import texts
from labkit.course.display import Badge, Table, measured_here, recorded
from labkit.timing import duration, total_latency, ttft_share

NOTEBOOK = "01_profile"
LENGTHS = (32, 128, 512)  # output tokens at which claim 1 gives its shares
# what articles say, in the order of the table; claims without a number are in the catalogue
CLAIMED = {
    "1": "20.5 / 5.9 / 1.5\N{NO-BREAK SPACE}%",
    "2": "3–5\N{NO-BREAK SPACE}s",
    "3": "5 / 15 / 50 / 25 / 5\N{NO-BREAK SPACE}%",
    "4": "650 FLOP/B",
    "4a": None,
    "5": None,
}


@dataclass(frozen=True)
class Baseline:
    """The plain model in figures.

    Args:
        prompt_tokens, new_tokens: of the request.
        ttft, tpot: medians [s].
        mbu, idle, waiting: shares. `idle`: time without a kernel while decoding; `waiting`: that part of it which
            began while the host waited for the device.
        ridge: measured peak over measured bandwidth [FLOP/B].
        stages: shares of the end-to-end time by stage.
        control: end-to-end time over that with fully random weights, where it was measured.
    """

    model: str
    prompt_tokens: int
    new_tokens: int
    ttft: float
    tpot: float
    tokens_per_second: float
    mbu: float
    idle: float
    waiting: float
    ridge: float
    stages: Mapping[str, float]
    control: float | None = None

    @classmethod
    def of_record(cls, entry: Mapping[str, Any]) -> Baseline:
        """The figures of a recorded `labkit bench profile`."""
        figures = entry["figures"]
        latency, gaps, stages = figures["latency"], figures["gaps"], figures["stages"]
        peaks, untraced = figures["ceilings"]["measured"], gaps.get("untraced_gap_share")
        return cls(
            model=figures["model"]["name"],
            prompt_tokens=latency["prompt_tokens"],
            new_tokens=latency["new_tokens"],
            ttft=latency["ttft"],
            tpot=latency["tpot"],
            tokens_per_second=latency["tokens_per_second"],
            mbu=figures["utilisation"]["mbu"],
            idle=gaps["gap_share"] if untraced is None else untraced,
            waiting=gaps["causes"]["waiting"] / gaps["traced_seconds"],
            ridge=peaks["flops"] / peaks["bandwidth"],
            stages={name: seconds / stages["e2e"] for name, seconds in stages["stages"].items()},
            control=figures["control"]["ratio"],
        )


def beside_record(here: Baseline, entry: Mapping[str, Any] | None) -> Table:
    """One column measured here and, where there is a record, one of it."""
    words = texts.words(NOTEBOOK)
    columns = [here] + ([Baseline.of_record(entry)] if entry else [])

    def row(name: str, shown: list[str]) -> list[str | Badge]:
        return [name, *shown]

    rows = [
        row(words["request"], [f"{column.prompt_tokens} + {column.new_tokens}" for column in columns]),
        row("TTFT", [duration(column.ttft) for column in columns]),
        row("TPOT", [duration(column.tpot) for column in columns]),
        row("tokens/s", [f"{column.tokens_per_second:.3g}" for column in columns]),
        row("MBU", [f"{column.mbu:.0%}" for column in columns]),
        row(words["idle"], [f"{column.idle:.0%}" for column in columns]),
        row(words["ridge"], [f"{column.ridge:.3g} FLOP/B" for column in columns]),
    ]
    if entry:
        ratios = ["–" if column.control is None else f"{column.control:.2f}×" for column in columns]
        rows.append(row(words["control"], ratios))
    rows.append(["", *_badges(entry)])
    return Table(["", *(column.model for column in columns)], rows)


def claims(here: Baseline, entry: Mapping[str, Any] | None) -> Table:
    """Each claim: claimed, measured here, recorded."""
    words = texts.words(NOTEBOOK)
    columns = [here] + ([Baseline.of_record(entry)] if entry else [])
    measured = [_claims_of(column) for column in columns]
    rows: list[list[str | Badge]] = [
        [words[f"claim_{key}"], said or words[f"says_{key}"], *(column[key] for column in measured)]
        for key, said in CLAIMED.items()
    ]
    rows.append(["", "", *_badges(entry)])
    return Table([words["claim"], words["claimed"], *(column.model for column in columns)], rows)


def _claims_of(base: Baseline) -> dict[str, str]:
    """What one set of figures says to each claim."""
    forward = base.stages["prefill"] + base.stages["decode"]
    others = [base.stages[name] for name in ("preprocessing", "compile", "sampling", "postprocessing")]
    five = [*others[:2], forward, *others[2:]]
    return {
        "1": _percents([ttft_share(base.ttft, base.tpot, tokens) for tokens in LENGTHS]),
        "2": f"{duration(total_latency(base.ttft, base.tpot, 20))} ({base.model})",  # the claim is of another
        "3": _percents(five),
        "4": f"{base.ridge:.3g} FLOP/B",
        "4a": f"{base.idle:.0%}",
        "5": f"{base.waiting:.0%}",
    }


def _percents(shares: list[float]) -> str:
    return " / ".join(f"{100 * share:.1f}".removesuffix(".0") for share in shares) + "\N{NO-BREAK SPACE}%"


def _badges(entry: Mapping[str, Any] | None) -> list[Badge]:
    return [measured_here()] + ([recorded(dict(entry))] if entry else [])
