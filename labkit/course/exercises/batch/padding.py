"""Exercise: the share of a padded batch that is padding."""

import random
from collections.abc import Callable, Sequence

from labkit.course.exercise import Exercise
from labkit.course.exercises.profile.values import judge


def padding_share(lengths: Sequence[int]) -> float:
    """Share of the computed positions that are padding (labkit's own answer)."""
    return 1 - sum(lengths) / (len(lengths) * max(lengths))


def _check_padding(fn: Callable, rng: random.Random) -> None:
    for rows in (rng.randint(5, 12), rng.randint(2, 4), rng.randint(30, 60)):
        lengths = rng.sample(range(3, 400), rows)
        longest = lengths.index(max(lengths))  # in the middle: neither the first nor the last is the longest
        middle = rows // 2 if rows > 2 else rng.randrange(2)
        lengths[longest], lengths[middle] = lengths[middle], lengths[longest]
        _judge_padding(fn, lengths)
    _judge_padding(fn, [rng.randint(5, 90)] * rng.randint(3, 9))
    _judge_padding(fn, [rng.randint(5, 90)])


def _judge_padding(fn: Callable, lengths: list[int]) -> None:
    rows, total, longest = len(lengths), sum(lengths), max(lengths)
    computed = rows * longest
    want = (computed - total) / computed
    typical = {
        "percent": 100 * want,
        "useful": total / computed,
        "count": computed - total,
        "over_useful": (computed - total) / total,
        "first_row": (rows * lengths[0] - total) / (rows * lengths[0]),
        "last_row": (rows * lengths[-1] - total) / (rows * lengths[-1]),
        "one_row_less": (computed - total) / (computed - longest) if rows > 1 else want,
        "shortest": 1 - rows * min(lengths) / total,
        "spread": 1 - min(lengths) / longest,
    }
    judge(
        fn(list(lengths)), want, "share", typical,
        lengths=str(lengths), rows=rows, total=total, longest=longest, computed=computed,
    )  # fmt: skip


EXERCISES = [
    Exercise(
        name="padding_share",
        notebook="03_batch",
        level="core",
        points=1,
        minutes=2,
        check=_check_padding,
        reference=padding_share,
        keeps_arguments=True,
    )
]
