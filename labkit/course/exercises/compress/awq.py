"""Exercise: one search for activation-aware scales (Lin et al. 2023, AWQ)."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from labkit.course.exercise import Exercise, expect
from labkit.course.exercises.cache.tensors import as_tensor, near, normal
from labkit.course.exercises.profile.values import close, number

if TYPE_CHECKING:
    from torch import Tensor

QUIET = 1e-4


def round_int4(matrix: Tensor) -> Tensor:
    """Rounded to 4 bits, one scale a row, and back."""
    step = (matrix.abs().amax(1, keepdim=True) / 7).clamp(min=1e-12)
    return (matrix / step).round() * step


def awq_scale(weight: Tensor, inputs: Tensor, ratios: Sequence[float]) -> tuple[float, list[float]]:
    """The ratio with the smallest error of the outputs, and the error of each (labkit's own answer)."""
    strength = inputs.abs().mean(0).clamp(min=QUIET)
    errors = [_error(weight, inputs, strength**ratio) for ratio in ratios]
    return ratios[errors.index(min(errors))], errors


def _error(weight: Tensor, inputs: Tensor, scale: Tensor) -> float:
    right = inputs @ weight.T
    return ((inputs @ (round_int4(weight * scale) / scale).T - right).norm() / right.norm()).item()


def _check(fn: Callable, rng: random.Random) -> None:
    for dead in (False, True):
        while True:
            weight, inputs, ratios = _draw(rng, dead)
            best, errors = awq_scale(weight, inputs, ratios)
            place, second = errors.index(min(errors)), sorted(errors)[1]
            # the best is neither plain rounding nor at the front, where the worst is not either, and it is clear
            if best and place >= 2 and second > 1.01 * min(errors) and errors[0] < max(errors):
                break
        _judge(fn, weight, inputs, ratios, dead)


def _draw(rng: random.Random, dead: bool) -> tuple[Tensor, Tensor, list[float]]:
    import torch

    outputs, columns, tokens = rng.randint(5, 7), rng.randint(12, 16), rng.randint(20, 30)
    loud = torch.tensor([4 ** rng.uniform(-1, 1) for _ in range(columns)], dtype=torch.float64)
    loud[rng.randrange(columns)] *= 10
    weight, inputs = normal(rng, outputs, columns), normal(rng, tokens, columns) * loud
    inputs += loud * torch.tensor([rng.choice([-0.5, 0.5]) for _ in range(columns)])  # means are not 0
    if dead:
        inputs[:, rng.randrange(columns)] = 0
    ratios = [0.0, *(part + rng.uniform(-0.09, 0.09) for part in (0.2, 0.4, 0.6, 0.8))]
    rng.shuffle(ratios)
    return weight, inputs, ratios


def _judge(fn: Callable, weight: Tensor, inputs: Tensor, ratios: list[float], dead: bool) -> None:
    case = "a column of the inputs is always 0" if dead else "no column is silent"
    given: dict[str, Any] = {"weight": list(weight.shape), "inputs": list(inputs.shape), "case": case}
    got = fn(weight, inputs, ratios)
    pair = isinstance(got, list | tuple) and len(got) == 2
    expect(pair, "form", got=got, ratios=ratios, **given)
    ratio, errors = got[0], as_tensor(got[1])
    expect(
        errors is not None and list(errors.shape) == [len(ratios)], "form", got=got, ratios=ratios, **given
    )
    assert errors is not None
    best, right = awq_scale(weight, inputs, ratios)
    want = as_tensor(right)
    assert want is not None
    shown = {"got": errors, "want": want, "ratios": ratios, **given}
    expect(bool(errors.isfinite().all()), "dead_column" if dead else "not_finite", **shown)
    if not near(errors, want, 1e-5):
        for mistake, values in _mistakes(weight, inputs, ratios).items():
            value = as_tensor(values)
            assert value is not None
            expect(near(value, want, 1e-5) or not near(errors, value, 1e-6), mistake, **shown)
        expect(False, "errors", **shown)
    place = right.index(min(right))
    shown |= {"got": ratio, "want": best, "errors": want, "place": place}
    expect(number(ratio) is not None, "form", **{**shown, "got": got})
    if not close(ratio, best, 1e-5):
        expect(not close(ratio, ratios[right.index(max(right))], 1e-5), "worst", **shown)
        expect(not close(ratio, place), "index", **shown)
        expect(not close(ratio, min(right), 1e-4), "error_returned", **shown)
        expect(False, "ratio", **shown)


def _mistakes(weight: Tensor, inputs: Tensor, ratios: list[float]) -> dict[str, list[float]]:
    """Errors that typical mistakes give."""
    size = inputs.abs()
    strength = size.mean(0).clamp(min=QUIET)
    outputs = inputs @ weight.T

    def with_scale(strength: Tensor) -> list[float]:
        return [_error(weight, inputs, strength.clamp(min=QUIET) ** ratio) for ratio in ratios]

    scales = [strength**ratio for ratio in ratios]
    rounded = [round_int4(weight * scale) for scale in scales]
    restored = [each / scale for each, scale in zip(rounded, scales, strict=True)]
    apart = [inputs @ each.T - outputs for each in restored]
    right = [(each.norm() / outputs.norm()).item() for each in apart]
    running, compounded = weight, []
    for scale in scales:
        running = running * scale
        back = inputs @ (round_int4(running) / scale).T
        compounded.append(((back - outputs).norm() / outputs.norm()).item())
    return {
        "weight_strength": with_scale(weight.abs().mean(0)),
        "signed": with_scale(inputs.mean(0)),
        "peak": with_scale(size.amax(0)),
        "inverse": with_scale(1 / strength),
        "one_strength": with_scale(size.mean().expand(len(strength))),
        "not_undone": [((inputs @ each.T - outputs).norm() / outputs.norm()).item() for each in rounded],
        "weight_error": [((each - weight).norm() / weight.norm()).item() for each in restored],
        "squared": [each**2 for each in right],
        "absolute": [each.norm().item() for each in apart],
        "mean_square": [each.square().mean().item() for each in apart],
        "compounded": compounded,
    }


EXERCISES = [
    Exercise(
        name="awq_scale",
        notebook="02_compress",
        level="core",
        points=3,
        minutes=7,
        check=_check,
        reference=awq_scale,
        keeps_arguments=True,
    )
]
