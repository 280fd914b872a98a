"""Exercise: how much of the memory's bandwidth a decode step uses."""

import random
from collections.abc import Callable, Sequence
from typing import Any

from labkit.course.exercise import Exercise
from labkit.course.exercises.profile.values import judge


def mbu(
    tensors: Sequence[tuple[int, int, int]],
    kv_bytes_per_token: int,
    lengths: Sequence[int],
    step_ms: float,
    bandwidth_gbs: float,
) -> float:
    """Model bandwidth utilisation of one decode step, a fraction (labkit's own answer)."""
    from labkit.profile import formulas  # brings torch, which the command line does not wait for

    weights = {address: values * width for address, values, width in tensors}
    cached = kv_bytes_per_token * sum(lengths)
    return formulas.mbu(sum(weights.values()), cached, step_ms / 1e3, bandwidth_gbs * 1e9)


def _check_mbu(fn: Callable, rng: random.Random) -> None:
    for tied, rows, share in (
        (False, 1, 0.3),
        (True, rng.randint(3, 8), 0.7),
        (True, 1, 0.1),
        (False, rng.randint(9, 16), 1.4),  # a model that lies in a cache
    ):
        widths = [2, 1, 2] + [rng.choice([1, 2]) for _ in range(rng.randint(0, 3))]
        tensors = [(rng.randrange(2**20, 2**40, 256), rng.randint(10**8, 10**9), width) for width in widths]
        # tied: the output layer is the embedding table again; untied: equal in size, yet other memory
        address, values, width = tensors[0]
        tensors.append((address if tied else address + 2**41, values, width))
        if tied and rows > 1:  # and not only the first: a layer that is used twice
            tensors.append(tensors[1])
        lengths = sorted(rng.sample(range(100, 900), rows))
        if rows > 1:  # put a row first that is neither the shortest nor the longest; two are equally long
            lengths[0], lengths[1] = lengths[1], lengths[0]
            lengths.insert(2, lengths[-1])
        kv, bandwidth = rng.randrange(2**19, 2**22, 2**16), rng.uniform(50, 4000)
        read = sum({a: v * w for a, v, w in tensors}.values()) + kv * sum(lengths)
        step = read / (share * rng.uniform(0.9, 1.1) * bandwidth * 1e9) * 1e3
        _judge_mbu(fn, tensors, kv, lengths, step, bandwidth)


def _judge_mbu(
    fn: Callable,
    tensors: list[tuple[int, int, int]],
    kv: int,
    lengths: list[int],
    step: float,
    bandwidth: float,
) -> None:
    given: dict[str, Any] = {"tensors": str(tensors), "kv": kv, "lengths": str(lengths), "rows": len(lengths)}
    given |= {"step": step, "bandwidth": bandwidth}
    stored = {address: values * width for address, values, width in tensors}
    weights, cache = sum(stored.values()), kv * sum(lengths)
    per_second = step / 1e3 * bandwidth * 1e9
    share = (weights + cache) / per_second
    typical = {
        "percent": 100 * share,
        "tied_twice": (sum(values * width for _, values, width in tensors) + cache) / per_second,
        "same_size_dropped": (sum({values * width for _, values, width in tensors}) + cache) / per_second,
        "elements": (sum({a: v for a, v, _ in tensors}.values()) + cache) / per_second,
        "one_row": (weights + kv * lengths[0]) / per_second,
        "longest_row": (weights + kv * max(lengths)) / per_second,
        "mean_row": (weights + cache / len(lengths)) / per_second,
        "no_kv": weights / per_second,
        "weights_per_row": (weights * len(lengths) + cache) / per_second,
        "step_unit": share / 1e3,
        "bandwidth_unit": share * 1e9,
        "both_units": share * 1e6,
        "inverted": 1 / share,
    }
    judge(fn(list(tensors), kv, list(lengths), step, bandwidth), share, "share", typical, **given)


EXERCISES = [
    Exercise(
        name="mbu",
        notebook="01_profile",
        level="core",
        points=2,
        minutes=4,
        check=_check_mbu,
        reference=mbu,
    ),
]
