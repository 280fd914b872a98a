"""Exercises: the latency terms from timestamps, the TTFT share, and the tokens that fit into a budget."""

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

from labkit.course.exercise import Exercise, expect
from labkit.course.exercises.profile.values import close, entries, judge, number
from labkit.timing import Latency, tokens_within, ttft_share

NAMES = ("ttft", "tpot", "itl", "e2e")


def latency_terms(sent: float, stamps: Sequence[float]) -> dict[str, Any]:
    """TTFT, TPOT, every ITL and E2E of one request, in seconds (labkit's own answer)."""
    found = Latency(sent, tuple(stamps))
    return {"ttft": found.ttft, "tpot": found.tpot, "itl": list(found.itl), "e2e": found.e2e}


def _check_terms(fn: Callable, rng: random.Random) -> None:
    for tokens in (rng.randint(3, 5), rng.randint(20, 60), 2, 1):
        sent = rng.uniform(1e3, 2e3)  # a clock does not start at zero
        now = sent + rng.uniform(0.1, 2.0)
        stamps = [now]
        for _ in range(tokens - 1):
            now += rng.choice([rng.uniform(0.005, 0.05), rng.uniform(0.1, 0.3)])
            stamps.append(now)
        _check_one_request(fn, sent, stamps)


def _check_one_request(fn: Callable, sent: float, stamps: list[float]) -> None:
    n = len(stamps)
    shown = f"sent = {sent:.3f}, stamps = [{', '.join(f'{stamp:.3f}' for stamp in stamps[:5])}"
    given: dict[str, Any] = {"request": shown + (f", …] ({n} tokens)" if n > 5 else "]"), "n": n}
    ttft, tpot, itl, e2e = entries(fn(sent, list(stamps)), NAMES, **given)

    want_ttft, want_e2e, decode = stamps[0] - sent, stamps[-1] - sent, stamps[-1] - stamps[0]
    ttft_typical = {"ttft_no_sent": stamps[0], "milliseconds": want_ttft * 1e3}
    judge(ttft, want_ttft, "ttft", ttft_typical, **given)
    e2e_typical = {"e2e_no_ttft": decode, "e2e_no_sent": stamps[-1]}
    judge(e2e, want_e2e, "e2e", e2e_typical, **given)

    expect(isinstance(itl, list | tuple) or hasattr(itl, "tolist"), "itl_form", got=itl, **given)
    gaps = list(itl.tolist() if hasattr(itl, "tolist") else itl)
    expect(len(gaps) != n, "itl_with_ttft", got=gaps, **given)
    expect(len(gaps) == n - 1, "itl_length", got=gaps, length=len(gaps), **given)
    for index in range(n - 1):
        want_gap = stamps[index + 1] - stamps[index]
        expect(close(gaps[index], want_gap), "itl", index=index, got=gaps[index], want=want_gap, **given)

    if n == 1:
        expect(tpot is None, "tpot_one_token", got=tpot, **given)
        return
    middle = sorted(gaps)
    tpot_typical = {
        "tpot_by_n": decode / n,
        "tpot_of_e2e": want_e2e / n,
        "tpot_e2e_by_gaps": want_e2e / (n - 1),
        "tpot_median": middle[len(middle) // 2],
    }
    judge(tpot, decode / (n - 1), "tpot", tpot_typical, **given)


def _check_share(fn: Callable, rng: random.Random) -> None:
    for tokens in (rng.randint(2, 9), rng.randint(10, 100), rng.randint(101, 2000), 1):
        ttft, tpot = rng.uniform(0.02, 2.0), rng.uniform(0.002, 0.2)
        total = ttft + tpot * (tokens - 1)
        typical = {
            "counts_n": ttft / (ttft + tpot * tokens),
            "percent": 100 * ttft / total,
            "decode_share": 1 - ttft / total,
            "total": total,
            "ratio": ttft / (tpot * (tokens - 1)) if tokens > 1 else -1.0,
        }
        judge(fn(ttft, tpot, tokens), ttft / total, "share", typical, ttft=ttft, tpot=tpot, tokens=tokens)


def _check_within(fn: Callable, rng: random.Random) -> None:
    for low, high in ((0.1, 0.4), (0.6, 0.9)) * 3:
        tpot, ttft, gaps = rng.uniform(0.002, 0.1), rng.uniform(0.02, 0.5), rng.randint(1, 60)
        # well inside a gap, so that the floats' own rounding cannot decide; in both halves of it, so that round() does
        _judge_within(fn, ttft, tpot, ttft + (gaps + rng.uniform(low, high)) * tpot, gaps + 1)
    tpot, ttft, gaps = rng.uniform(0.002, 0.1), rng.uniform(0.02, 0.5), rng.randint(500, 3000)
    _judge_within(fn, ttft, tpot, ttft + (gaps + 0.5) * tpot, gaps + 1)
    _judge_within(fn, 0.5, 0.0625, 0.5 * rng.uniform(0.05, 0.7), 0)
    _judge_within(
        fn, 0.5, 0.0625, 0.5 - 0.0625 * rng.uniform(0.05, 0.95), 0
    )  # less than one TPOT short of TTFT
    # powers of two, so that the last token arrives exactly at the limit without any rounding
    gaps = rng.randint(1, 40)
    _judge_within(fn, 0.25, 0.03125, 0.25 + gaps * 0.03125, gaps + 1)
    _judge_within(fn, 0.25, 0.03125, 0.25, 1)


def _judge_within(fn: Callable, ttft: float, tpot: float, budget: float, want: int) -> None:
    got = fn(ttft, tpot, budget)
    given = {"ttft": ttft, "tpot": tpot, "budget": budget}
    value = number(got)
    expect(value is not None, "form", got=got, **given)
    whole = math.floor(value or 0)
    expect(value == whole or whole != want, "fraction", got=got, want=want, **given)
    expect(value == whole, "no_whole_number", got=got, want=want, **given)
    if want == 0:
        expect(value is not None and value >= 0, "negative", got=got, **given)
    typical = {
        "off_by_one": want - 1,
        "one_too_many": want + 1,
        "ignores_ttft": budget // tpot,
        "ignores_ttft_plus": budget // tpot + 1,
    }
    judge(got, want, "tokens", {k: v for k, v in typical.items() if v != want}, **given)


EXERCISES = [
    Exercise(
        name="latency_terms",
        notebook="01_profile",
        level="core",
        points=3,
        minutes=4,
        check=_check_terms,
        reference=latency_terms,
    ),
    Exercise(
        name="ttft_share",
        notebook="01_profile",
        level="core",
        points=1,
        minutes=2,
        check=_check_share,
        reference=ttft_share,
    ),
    Exercise(
        name="tokens_within",
        notebook="01_profile",
        level="core",
        points=2,
        minutes=3,
        check=_check_within,
        reference=tokens_within,
    ),
]
