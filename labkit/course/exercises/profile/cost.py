"""Exercises: FLOPs and bytes of a forward pass, and its place under the roofline."""

import random
from collections.abc import Callable, Mapping
from typing import Any

from labkit.course.exercise import Exercise, expect
from labkit.course.exercises.profile.values import entries, judge

ROOFLINE = ("intensity", "ridge", "floor_ms", "bound")


def step_cost(shape: Mapping[str, int], new: int, past: int) -> tuple[int, int]:
    """FLOPs and bytes of a forward pass over `new` tokens after `past` cached ones (labkit's own answer)."""
    pairs = new * past + new * (new + 1) // 2
    attention = 4 * shape["layers"] * shape["heads"] * shape["head_dim"] * pairs
    cached = 2 * shape["layers"] * shape["kv_heads"] * shape["head_dim"] * (past + new)
    return 2 * shape["weights"] * new + attention, (shape["weights"] + cached) * shape["bytes"]


def roofline(flops: float, nbytes: float, peak_tflops: float, bandwidth_gbs: float) -> dict[str, Any]:
    """Intensity, ridge, floor and what binds (labkit's own answer)."""
    from labkit.profile import formulas  # brings torch, which the command line does not wait for

    peak, bandwidth = peak_tflops * 1e12, bandwidth_gbs * 1e9
    intensity, ridge = formulas.intensity(flops, nbytes), formulas.ridge(peak, bandwidth)
    return {
        "intensity": intensity,
        "ridge": ridge,
        "floor_ms": 1e3 * formulas.floor_seconds(flops, nbytes, peak, bandwidth),
        "bound": "memory" if intensity < ridge else "compute",
    }


def _random_shape(rng: random.Random, width: int) -> dict[str, int]:
    """A small grouped-query model: small, so that no term drowns in another."""
    kv_heads = rng.randint(1, 4)
    return {
        "weights": rng.randint(1_000, 9_000),
        "layers": rng.choice([3, 5, 6, 7]),  # not 2 (key and value), not a width: mistakes must tell apart
        "heads": kv_heads * rng.choice([3, 5]),
        "kv_heads": kv_heads,
        "head_dim": rng.choice([8, 16, 24, 32]),
        "bytes": width,
    }


def _check_step_cost(fn: Callable, rng: random.Random) -> None:
    calls = (
        (1, rng.randint(5, 40)),
        (rng.randint(5, 30), 0),
        (rng.randint(3, 9), rng.randint(5, 30)),
        (1, 0),
    )
    # in a width of 2, a cache counted in values would look like one without its values (or its keys)
    widths = (rng.choice([1, 4]), 4, rng.choice([1, 4]), rng.choice([1, 4]))
    for (new, past), width in zip(calls, widths, strict=True):
        _judge_step_cost(fn, _random_shape(rng, width), new, past)


def _judge_step_cost(fn: Callable, shape: dict[str, int], new: int, past: int) -> None:
    call = "prefill" if past == 0 else "decode" if new == 1 else "a later chunk of a prefill"
    given: dict[str, Any] = {"shape": str(shape), "new": new, "past": past, "call": call}
    got = fn(dict(shape), new, past)
    got = got.tolist() if hasattr(got, "tolist") else got
    expect(isinstance(got, list | tuple) and len(got) == 2, "form", got=got, **given)
    weights, width, layers, dim = shape["weights"], shape["bytes"], shape["layers"], shape["head_dim"]

    # counted one token at a time, unlike the closed form that an answer will use
    seen = [past + index + 1 for index in range(new)]
    head_pairs = layers * shape["heads"] * dim * sum(seen)
    linear = 2 * weights * new
    typical_flops = {
        "one_flop_per_weight": weights * new + 4 * head_pairs,
        "no_attention": linear,
        "scores_only": linear + 2 * head_pairs,
        "kv_heads_in_flops": linear + 4 * layers * shape["kv_heads"] * dim * sum(seen),
        "not_causal": linear + 4 * layers * shape["heads"] * dim * new * (past + new),
        "not_itself": linear + 4 * layers * shape["heads"] * dim * sum(length - 1 for length in seen),
        "no_past_flops": linear + 4 * layers * shape["heads"] * dim * sum(range(1, new + 1)),
        "weights_on_past": 2 * weights * (past + new) + 4 * head_pairs,
        "no_layers_flops": linear + 4 * shape["heads"] * dim * sum(seen),
        "one_token": 2 * weights + 4 * layers * shape["heads"] * dim * (past + new),
    }
    parts = {"linear": linear, "attention": 4 * head_pairs}
    judge(got[0], linear + 4 * head_pairs, "flops", typical_flops, **parts, **given)

    row = layers * dim * width * (past + new)
    typical_bytes = {
        "elements": weights + 2 * layers * dim * shape["kv_heads"] * (past + new),
        "weights_in_elements": weights + 2 * shape["kv_heads"] * row,
        "cache_in_elements": weights * width + 2 * shape["kv_heads"] * row // width,
        "weights_per_token": weights * width * new + 2 * shape["kv_heads"] * row,
        "weights_on_seen": weights * width * (past + new) + 2 * shape["kv_heads"] * row,
        "no_layers_bytes": weights * width + 2 * shape["kv_heads"] * row // layers,
        "no_kv": weights * width,
        "only_keys": weights * width + shape["kv_heads"] * row,
        "all_heads_in_kv": weights * width + 2 * shape["heads"] * row,
        "no_new_in_kv": weights * width + 2 * shape["kv_heads"] * layers * dim * width * past,
        "no_past_in_kv": weights * width + 2 * shape["kv_heads"] * layers * dim * width * new,
    }
    parts = {"weight_bytes": weights * width, "cache_bytes": 2 * shape["kv_heads"] * row}
    judge(got[1], sum(parts.values()), "bytes", typical_bytes, **parts, **given)


def _check_roofline(fn: Callable, rng: random.Random) -> None:
    for side in ("memory", "compute", rng.choice(["memory", "compute"])):
        peak, bandwidth, nbytes = rng.uniform(0.1, 1000), rng.uniform(10, 5000), rng.uniform(1e8, 1e11)
        times_ridge = rng.uniform(0.01, 0.6) if side == "memory" else rng.uniform(1.7, 50)
        flops = nbytes * times_ridge * peak * 1e12 / (bandwidth * 1e9)
        given = {"flops": flops, "nbytes": nbytes, "peak_tflops": peak, "bandwidth_gbs": bandwidth}
        _judge_roofline(fn, given, side)


def _judge_roofline(fn: Callable, given: dict[str, float], side: str) -> None:
    flops, nbytes, peak, bandwidth = given.values()
    intensity, ridge, floor, bound = entries(fn(flops, nbytes, peak, bandwidth), ROOFLINE, **given)

    judge(intensity, flops / nbytes, "intensity", {"intensity_inverted": nbytes / flops}, **given)
    want = peak * 1e12 / (bandwidth * 1e9)
    judge(ridge, want, "ridge", {"ridge_units": peak / bandwidth, "ridge_inverted": 1 / want}, **given)
    compute, memory = flops / peak / 1e9, nbytes / bandwidth / 1e6
    typical = {
        "floor_sum": compute + memory,
        "floor_min": min(compute, memory),
        "floor_seconds": max(compute, memory) / 1e3,
        "floor_units": max(flops / peak, nbytes / bandwidth),
    }
    judge(floor, max(compute, memory), "floor", typical, memory=memory, compute=compute, **given)
    expect(bound in ("memory", "compute"), "bound_name", got=bound)
    expect(bound == side, "bound", got=bound, intensity=intensity, ridge=ridge, side=side)


EXERCISES = [
    Exercise(
        name="step_cost",
        notebook="01_profile",
        level="extra",
        points=3,
        minutes=12,
        check=_check_step_cost,
        reference=step_cost,
    ),
    Exercise(
        name="roofline",
        notebook="01_profile",
        level="core",
        points=2,
        minutes=4,
        check=_check_roofline,
        reference=roofline,
    ),
]
