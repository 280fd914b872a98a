"""Tables of notebook 01: what was measured here beside the recorded run, the target, and the claims beside both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.course import texts
from labkit.course.display import Badge, Table, measured_here, recorded
from labkit.profile.card_text import amount
from labkit.timing import duration, tokens_within, total_latency, ttft_share

NOTEBOOK = "01_profile"
LENGTHS = (32, 128, 512)  # output tokens at which claim 1 gives its shares
TARGET_TOKENS, TARGET_FIRST, TARGET_ALL = 32, 0.1, 0.2  # the service's target; the times in seconds
TARGET_ROWS = (
    "target_first",
    "target_first_floor",
    "target_within",
    "target_all",
    "target_floor",
    "target_verdict",
)
OVERHEAD = 3  # this many times its floor, a pass has something else in its way than bytes or arithmetic
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
        ttft_floor, tpot_floor: what the device allows at best [s].
        parameters: of the model.
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
    ttft_floor: float
    tpot_floor: float
    parameters: int
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
            ttft_floor=figures["floors"]["ttft"],
            tpot_floor=figures["floors"]["tpot"],
            parameters=figures["model"]["parameters"],
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


def target(here: Baseline, entry: Mapping[str, Any] | None) -> Table:
    """Whether the service meets its target, here and recorded, and whether the device would allow it."""
    words = texts.words(NOTEBOOK)
    columns = [here] + ([Baseline.of_record(entry)] if entry else [])
    given = {"tokens": TARGET_TOKENS, "first": duration(TARGET_FIRST), "whole": duration(TARGET_ALL)}
    judged = [_target_of(column) for column in columns]
    rows: list[list[str | Badge]] = [
        [words[key].format(**given), *(one[key] for one in judged)] for key in TARGET_ROWS
    ]
    rows.append(["", *_badges(entry)])
    return Table(["", *(column.model for column in columns)], rows, words["target"].format(**given))


def _target_of(base: Baseline) -> dict[str, str]:
    """One column of `target`."""
    words = texts.words(NOTEBOOK)
    whole = total_latency(base.ttft, base.tpot, TARGET_TOKENS)
    floor = total_latency(base.ttft_floor, base.tpot_floor, TARGET_TOKENS)
    missed = max(whole / TARGET_ALL, base.ttft / TARGET_FIRST)
    possible = floor <= TARGET_ALL and base.ttft_floor <= TARGET_FIRST
    what = words["target_what_all" if floor > TARGET_ALL else "target_what_first"]
    said = "target_met" if missed <= 1 else "target_slow" if possible else "target_costs"
    return {
        "target_first": duration(base.ttft),
        "target_first_floor": duration(base.ttft_floor),
        "target_within": str(tokens_within(base.ttft, base.tpot, TARGET_ALL)),
        "target_all": duration(whole),
        "target_floor": duration(floor),
        "target_verdict": words[said].format(factor=f"{missed:.2g}", what=what),
    }


def verdict(name: str, bound: str, measured: float, floor: float) -> str:
    """What a pass waits for, from how far it is above its floor.

    Args:
        bound: what sets the floor, "memory" or "compute".
        measured, floor: in the same unit.
    """
    how = "far" if measured > OVERHEAD * floor else "near"
    given = {"name": name, "ratio": f"{measured / floor:.2g}", "share": f"{floor / measured:.0%}"}
    return texts.words(NOTEBOOK)[f"{how}_{bound}"].format(**given)


def step_parts(step: float, floor: float, idle: float) -> Table:
    """A decode step in three parts: its bytes at full bandwidth, the device idle, and the rest.

    Args:
        step, floor: the measured step, and the least it can take [s].
        idle: the share of the time in which nothing runs.
    """
    words = texts.words(NOTEBOOK)
    parts = {"part_bytes": floor / step, "part_idle": idle}
    parts["part_rest"] = max(0.0, 1 - sum(parts.values()))
    rows = [[words[key], f"{share:.0%}", duration(share * step)] for key, share in parts.items()]
    return Table([words["of_step"].format(step=duration(step)), "", ""], rows)


def stage_runs(runs: Mapping[str, Sequence[Mapping[str, float]]], stages: Sequence[str]) -> Table:
    """The range of some stages over several runs of each kind.

    Args:
        runs: kind of run → seconds of each stage, run by run.
    """
    words = texts.words(NOTEBOOK)
    rows = [[stage, *(_range([run[stage] for run in kind]) for kind in runs.values())] for stage in stages]
    return Table([words["stage"], *runs], rows, words["stage_runs"])


def _range(seconds: Sequence[float]) -> str:
    return f"{duration(min(seconds))} – {duration(max(seconds))}"


def _claims_of(base: Baseline) -> dict[str, str]:
    """What one set of figures says to each claim."""
    words = texts.words(NOTEBOOK)
    named = words["parameters"].format(model=base.model, count=amount(base.parameters, "").strip())
    forward = base.stages["prefill"] + base.stages["decode"]
    others = [base.stages[name] for name in ("preprocessing", "compile", "sampling", "postprocessing")]
    five = [*others[:2], forward, *others[2:]]
    return {
        "1": _percents([ttft_share(base.ttft, base.tpot, tokens) for tokens in LENGTHS]),
        "2": f"{duration(total_latency(base.ttft, base.tpot, 20))} ({named})",  # the claim is of another
        "3": _percents(five),
        "4": f"{base.ridge:.3g} FLOP/B",
        "4a": _percents([base.idle]),
        "5": _percents([base.waiting]),
    }


def _percents(shares: list[float]) -> str:
    return " / ".join(f"{100 * share:.1f}".removesuffix(".0") for share in shares) + "\N{NO-BREAK SPACE}%"


def _badges(entry: Mapping[str, Any] | None) -> list[Badge]:
    return [measured_here()] + ([recorded(dict(entry))] if entry else [])
