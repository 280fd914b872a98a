"""Tables of notebook 03: the schedulers side by side, prediction beside measurement, the record, the claims."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labkit.batch.replay import Replay
from labkit.batch.virtual import CostModel
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


def costs(fitted: CostModel) -> Table:
    """The fitted parts of a step, and what each is paid for."""
    words = texts.words(NOTEBOOK)
    parts = (fitted.step, fitted.token, fitted.row, fitted.context, fitted.pair)
    rows: list[list[str | Badge]] = [
        [f"c{number}", duration(seconds), words[f"cost_{number}"]] for number, seconds in enumerate(parts)
    ]
    return Table(["", words["fitted"], words["cost"]], rows)


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
    model: str,
    runs: Mapping[str, Replay],
    alone: float,
    curve: Mapping[int, float],
    ratio: float,
    entry: Mapping[str, Any] | None,
) -> Table:
    """Steps and ways to serve: here and, where there is a record, on the recorded GPU.

    Args:
        runs: one at a time, static, dynamic, continuous and "continuous, all" (a row for everybody).
        alone: tokens/s of transformers' generate, one request after the other.
        curve: batch size → seconds of a decode step.
        ratio: seconds that the virtual engine predicted for a load, over those measured.
    """
    words = texts.words(NOTEBOOK)
    there = _recorded_steps(entry) if entry else dict(curve)
    most = max(set(curve) & set(there))
    rows: list[list[str | Badge]] = [
        [words["one_row"], duration(curve[1])],
        [words["most_rows"].format(rows=most), duration(curve[most])],
        [words["alone"], _rate(alone)],
    ]
    rows += [[words[key], _rate(runs[key].tokens_per_second)] for key in RECORDED_AS]
    rows.append([words["virtual"], f"{ratio:.2f}"])
    head = [words["way"], model]
    if entry is None:
        return Table(head, [*rows, ["", measured_here()]])
    figures = entry["figures"]
    load = figures["loads"]["skewed"]
    alone_there = figures["loads"]["equal"]["one_by_one"]["tokens_per_second"]
    theirs = [duration(there[1]), duration(there[most]), _rate(alone_there)]
    theirs += [_ours(load, name) for name in RECORDED_AS.values()]
    theirs.append(f"{figures['prediction']['ratio']:.2f}")
    rows = [[*row, value] for row, value in zip(rows, theirs, strict=True)]
    peer = _peer(load)
    rows.insert(-1, [words["peer"], "–", "–" if peer is None else _rate(peer)])
    rows.append(["", measured_here(), recorded(dict(entry))])
    return Table([*head, figures["model"]], rows)


RECORDED_AS = {"static": "static", "continuous": "continuous, few", "continuous, all": "continuous"}


def notes(entry: Mapping[str, Any]) -> list[str]:
    """What a recorded run says, in sentences that hold for its figures."""
    words, figures = texts.words(NOTEBOOK), entry["figures"]
    steps, prediction = _recorded_steps(entry), figures["prediction"]
    most = max(steps)
    growth = steps[most] / steps[1]
    skewed, equal = figures["loads"]["skewed"]["ours"], figures["loads"]["equal"]["ours"]
    found = [words["note_flat" if growth < FLAT else "note_grows"].format(rows=most, growth=f"{growth:.2f}")]
    found.append(
        words["note_gain"].format(
            gain=f"{_gain(skewed, 'continuous, few'):.1f}",
            all=f"{_gain(skewed, 'continuous'):.1f}",
            static=skewed["static"]["steps"],
            few=skewed["continuous, few"]["steps"],
        )
    )
    if equal["static"]["steps"] < 1.1 * equal["continuous, few"]["steps"]:
        counts = {"static": equal["static"]["steps"], "few": equal["continuous, few"]["steps"]}
        found.append(words["note_equal"].format(**counts))
    if not 2 / 3 < prediction["ratio"] < 3 / 2:
        said = words["note_prediction"].format(ratio=f"{prediction['ratio']:.2f}")
        found.append(said + (words["note_no_step"] if prediction["costs"]["step"] == 0 else ""))
    return found


FLAT = 1.5  # a step that grows by less over all sizes is "nearly as long"


def claims(
    rows_11: Mapping[int, float],
    best: str,
    busy: Mapping[str, float],
    gain: float,
    entry: Mapping[str, Any] | None,
) -> Table:
    """Each claim: claimed, measured here, recorded.

    Args:
        rows_11: batch size → measured throughput over that of one row.
        best: the window and size that served best in the exploration, in words.
        busy: static and continuous → share of the slots that a mean step used.
        gain: tokens/s of continuous over static batching, equal slots.
    """
    words = texts.words(NOTEBOOK)
    claimed = " / ".join(f"{rate / LAW[1]:.2f}" for rate in LAW.values())
    here = " / ".join(f"{rows_11[size]:.2f}" for size in LAW if size in rows_11)
    table: list[list[str | Badge]] = [
        [words["claim_11"], claimed, here],
        [words["claim_12"], words["says_12"], best],
        [words["claim_13"], words["says_13"], _busy(busy["static"], busy["continuous"])],
        [words["claim_13_gain"], "–", words["gain"].format(gain=f"{gain:.2f}")],
    ]
    head = [words["claim"], words["claimed"], words["here"]]
    if entry is None:
        return Table(head, [*table, ["", "", measured_here()]])
    figures = entry["figures"]
    ours, slots = figures["loads"]["skewed"]["ours"], figures["plan"]["batch"]
    steps = _recorded_steps(entry)
    there = [
        " / ".join(f"{size * steps[1] / steps[size]:.2f}" for size in LAW),
        "–",
        _busy(*(ours[name]["rows_a_step"] / slots for name in ("static", "continuous, few"))),
        words["gain"].format(gain=f"{_gain(ours, 'continuous, few'):.2f}"),
    ]
    for row, value in zip(table, there, strict=True):
        row.append(value)
    table.append(["", "", measured_here(), recorded(dict(entry))])
    return Table([*head, figures["model"]], table)


def _recorded_steps(entry: Mapping[str, Any]) -> dict[int, float]:
    return {int(size): seconds for size, seconds in entry["figures"]["decode_step"].items()}


def _gain(ours: Mapping[str, Any], name: str) -> float:
    gain: float = ours[name]["tokens_per_second"] / ours["static"]["tokens_per_second"]
    return gain


def _busy(static: float, continuous: float) -> str:
    return f"{static:.0%} → {continuous:.0%}"


def _peer(load: Mapping[str, Any]) -> float | None:
    """The best setting of transformers' continuous batching [tokens/s]."""
    rates = [one["tokens_per_second"] for one in load["transformers"].values() if "tokens_per_second" in one]
    return max(rates, default=None)


def _ours(load: Mapping[str, Any], name: str) -> str:
    found = load["ours"].get(name)
    return _rate(found["tokens_per_second"]) if found else "–"


def _rate(rate: float) -> str:
    return f"{rate:,.0f} tokens/s"
