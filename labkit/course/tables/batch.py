"""Tables of notebook 03: the schedulers side by side, prediction beside measurement, the record, the claims."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labkit.batch.replay import Replay
from labkit.course import texts
from labkit.course.display import Badge, Table, measured_here, recorded
from labkit.timing import duration

NOTEBOOK = "03_batch"
LAW = {1: 18.2, 2: 30.2, 4: 34.1, 8: 36.4, 16: 37.7}  # what articles say, requests/s by batch size (claim 11)


def schedulers(runs: Mapping[str, Replay]) -> Table:
    """One row a scheduler: throughput, first token, whole answer."""
    words = texts.words(NOTEBOOK)
    rows: list[list[str | Badge]] = [
        [
            name,
            f"{run.tokens_per_second:,.0f}",
            *(f"{duration(run.ttft(q))}" for q in (50, 95)),
            *(f"{duration(run.e2e(q))}" for q in (50, 95)),
        ]
        for name, run in runs.items()
    ]
    head = [words["scheduler"], "tokens/s", "TTFT p50", "TTFT p95", "E2E p50", "E2E p95"]
    return Table(head, rows, words["schedulers"])


def law(ours: Mapping[int, float]) -> Table:
    """The articles' figures beside those of a function, by batch size [requests/s]."""
    words = texts.words(NOTEBOOK)
    rows: list[list[str | Badge]] = [
        [words["claimed"], *(f"{rate:.1f}" for rate in LAW.values())],
        [words["by_formula"], *(f"{ours[size]:.1f}" for size in LAW)],
    ]
    return Table([words["per_second"], *(f"b = {size}" for size in LAW)], rows)


def prediction(predicted: Mapping[str, Replay], measured: Mapping[str, Replay]) -> Table:
    """The virtual engine beside the real one: seconds of the whole load, and the wait for the first token."""
    words = texts.words(NOTEBOOK)
    rows: list[list[str | Badge]] = []
    for name, real in measured.items():
        told = predicted[name]
        seconds = [duration(told.seconds), duration(real.seconds), f"{told.seconds / real.seconds:.2f}"]
        rows.append([name, *seconds, duration(told.ttft(95)), duration(real.ttft(95))])
    head = [words["scheduler"], words["predicted"], words["measured"], words["ratio"]]
    return Table([*head, words["predicted_ttft"], words["measured_ttft"]], rows, words["prediction"])


def beside_record(
    model: str, runs: Mapping[str, Replay], alone: float, entry: Mapping[str, Any] | None
) -> Table:
    """Tokens per second of each way to serve: here and, where there is a record, on the recorded GPU.

    Args:
        runs: one at a time, static, dynamic, continuous and "continuous, memory" (as many rows as fit).
        alone: tokens/s of transformers' generate, one request after the other.
    """
    words = texts.words(NOTEBOOK)
    rows: list[list[str | Badge]] = [[words["alone"], _rate(alone)]]
    rows += [[words[key], _rate(runs[key].tokens_per_second)] for key in RECORDED_AS]
    head = [words["way"], model]
    if entry is None:
        return Table(head, [*rows, ["", measured_here()]])
    figures = entry["figures"]
    load = figures["loads"]["skewed"]
    alone_there = figures["loads"]["equal"]["one_by_one"]["tokens_per_second"]
    theirs = [_rate(alone_there)] + [_ours(load, name) for name in RECORDED_AS.values()]
    rows = [[*row, there] for row, there in zip(rows, theirs, strict=True)]
    peers = [
        peer["tokens_per_second"] for peer in load["transformers"].values() if "tokens_per_second" in peer
    ]
    rows.append([words["peer"], "–", _rate(max(peers)) if peers else "–"])
    rows.append(["", measured_here(), recorded(dict(entry))])
    return Table([*head, figures["model"]], rows)


RECORDED_AS = {"static": "static", "continuous": "continuous, few", "continuous, memory": "continuous"}


def claims(rows_11: Mapping[int, float], best: str, gain: float, entry: Mapping[str, Any] | None) -> Table:
    """Each claim: claimed, measured here, recorded.

    Args:
        rows_11: batch size → measured throughput over that of one row.
        best: the window and size that served best in the exploration, in words.
        gain: tokens/s of continuous over static batching, equal slots.
    """
    words = texts.words(NOTEBOOK)
    claimed = " / ".join(f"{rate / LAW[1]:.2f}" for rate in LAW.values())
    here = " / ".join(f"{rows_11[size]:.2f}" for size in LAW if size in rows_11)
    table: list[list[str | Badge]] = [
        [words["claim_11"], claimed, here],
        [words["claim_12"], words["says_12"], best],
        [words["claim_13"], words["says_13"], words["gain"].format(gain=f"{gain:.2f}")],
    ]
    head = [words["claim"], words["claimed"], words["here"]]
    if entry is None:
        return Table(head, [*table, ["", "", measured_here()]])
    ours = entry["figures"]["loads"]["skewed"]["ours"]
    there = ours["continuous, few"]["tokens_per_second"] / ours["static"]["tokens_per_second"]
    steps = {int(size): seconds for size, seconds in entry["figures"]["decode_step"].items()}
    curve = " / ".join(f"{size * steps[1] / steps[size]:.2f}" for size in LAW)
    for row, value in zip(table, (curve, "–", words["gain"].format(gain=f"{there:.2f}")), strict=True):
        row.append(value)
    table.append(["", "", measured_here(), recorded(dict(entry))])
    return Table([*head, entry["figures"]["model"]], table)


def _ours(load: Mapping[str, Any], name: str) -> str:
    found = load["ours"].get(name)
    return _rate(found["tokens_per_second"]) if found else "–"


def _rate(rate: float) -> str:
    return f"{rate:,.0f} tokens/s"
