"""Request traces: who came when and how much they wanted, in a CSV file without anybody's text.

A trace that a service recorded can be replayed on the real engine and on the virtual one; prompts of the same
lengths are cut from a text of your own.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Sequence
from pathlib import Path

from labkit.batch.request import Request, Ticket
from labkit.batch.workload import Arrival
from labkit.errors import LabkitError

COLUMNS = ("arrival_s", "prompt_tokens", "output_tokens", "priority")


def record(tickets: Sequence[Ticket]) -> list[Arrival]:
    """What an engine has served, as a load to replay: times from the first arrival, outputs as long as they became."""
    start = min((ticket.arrival for ticket in tickets), default=0.0)
    found = [
        Arrival(
            Request(
                prompt=ticket.prompt,
                max_tokens=len(ticket.first.tokens),
                ignore_eos=True,
                priority=ticket.request.priority,
            ),
            ticket.arrival - start,
        )
        for ticket in tickets
        if ticket.first.tokens
    ]
    return sorted(found, key=lambda arrival: arrival.at)


def write(path: str | Path, arrivals: Sequence[Arrival]) -> None:
    """Write a trace: one line a request, in order of arrival."""
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(COLUMNS)
        for one in arrivals:
            request = one.request
            lines.writerow(
                [f"{one.at:.4f}", len(request.prompt), request.max_tokens, f"{request.priority:g}"]
            )


def read(path: str | Path, text: Sequence[int], *, seed: int = 0) -> list[Arrival]:
    """The requests of a trace, their prompts cut from `text` at seeded places.

    Greedy, and ignoring the end of text, so that their lengths are the trace's. The column priority may be left out.

    Args:
        text: token ids, more of them than the longest prompt has.

    Raises:
        LabkitError: no such file, a column that is missing, or a line that is not a request (with its number).
    """
    draw = random.Random(seed)
    try:
        with Path(path).open(newline="", encoding="utf-8") as file:
            lines = csv.DictReader(file)
            missing = [name for name in COLUMNS[:3] if name not in (lines.fieldnames or ())]
            if missing:
                raise LabkitError(f"{path} has no column {missing[0]}.", f"Its first line names {COLUMNS}.")
            return [_arrival(line, text, draw, f"{path}, line {lines.line_num}") for line in lines]
    except (UnicodeDecodeError, csv.Error) as error:
        raise LabkitError(f"{path} is no CSV text: {error}.", "Give a trace as `write` makes them.") from None
    except OSError as error:
        raise LabkitError(f"{path} cannot be read: {error.strerror}.", "Give the path of a trace.") from None


def _arrival(line: dict[str, str], text: Sequence[int], draw: random.Random, where: str) -> Arrival:
    try:
        at, priority = float(line["arrival_s"]), float(line.get("priority") or 0)
        asked, new = int(line["prompt_tokens"]), int(line["output_tokens"])
    except (TypeError, ValueError):
        raise LabkitError(
            f"{where} is not a request.", "Seconds, then two whole numbers of tokens."
        ) from None
    if not (0 <= at < float("inf") and asked >= 1 and new >= 1):
        raise LabkitError(
            f"{where}: {at:g} s, {asked} and {new} tokens.", "Times from 0 on, tokens from 1 on."
        )
    if asked >= len(text):
        raise LabkitError(
            f"{where}: a text of {len(text)} tokens has no prompt of {asked}.", "Give a longer one."
        )
    start = draw.randrange(len(text) - asked)
    prompt = tuple(text[start : start + asked])
    return Arrival(Request(prompt=prompt, max_tokens=new, ignore_eos=True, priority=priority), at)
