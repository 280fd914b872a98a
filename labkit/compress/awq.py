"""Activation-aware weight quantisation: round with more care what meets large inputs.

    W x = (W · diag(s)) (x / s)        s_k = (mean |x_k|)^r

Rounding a weight moves it by up to half a step of its group. Multiplied by s > 1 before, it moves by that much less
after the division, as long as it does not set the step. So channels with large inputs get large s; how large, an
exponent r from 0 (all alike) to 1 says, and the best one is searched. Then each group's range is clipped where that
lowers the error: a few large weights saturate, and all others get a finer step.

What is minimised is the squared error of the outputs over the calibration text, of all layers that read one tensor.
With H = XᵀX / S it needs no X:

    mean |(Ŵ - W) x|² = sum over rows d of Ŵ - W of d H dᵀ

Groups are clipped one after another, each given the errors of the others, so that errors cancel where inputs go
together. An error that only looks at a group of its own leaves most of that on the table: inputs have means, and
every row's error times the mean input is a constant that is added to its output.

Lin et al. 2023, "AWQ: Activation-aware weight quantization for LLM compression and acceleration".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from labkit.compress.calibration import Calibration
from labkit.compress.folding import folds
from labkit.compress.layers import linears
from labkit.compress.scaled import Scaled
from labkit.kernels.formats import Format
from labkit.kernels.packed import grid, quantise
from labkit.models import LM

CLIPS = tuple(1 - 0.01 * step for step in range(61))
"""Factors for the range of a group: 1, 0.99, … 0.4."""

TYPICAL_CLIP = 0.85
"""For judging scales before ranges are searched."""

FLOOR = 0.01
"""Of the mean over channels: smaller inputs count as this large, so no scale is huge where there was no input."""

SWEEPS = 2
AT_ONCE = 1 << 24
"""Candidates for weights that are held at a time."""


def awq(
    lm: LM,
    calibration: Calibration,
    formats: Format | Mapping[str, Format | None],
    *,
    ratios: int = 20,
    clips: Sequence[float] = CLIPS,
    sweeps: int = SWEEPS,
    progress: Callable[[str], None] | None = None,
) -> Scaled:
    """Scales and clips of every linear layer, tensor by tensor on the model's device.

    Args:
        calibration: of this model, see `calibrate`.
        formats: of all linear layers, or by name; layers that are absent or None stay as they are.
        ratios: exponents to try beside 0; 0: no scales.
        clips: see CLIPS; without any, ranges stay whole.
        progress: called with the names of the layers that are searched.

    Raises:
        LabkitError: the calibration is not of this model.
    """
    found, modules = Scaled(), linears(lm)
    chosen = formats if isinstance(formats, Mapping) else {}
    for fold in folds(lm):
        names = {
            name: format
            for name in fold.readers
            if (format := chosen.get(name) if isinstance(formats, Mapping) else formats) is not None
        }
        if not names:
            continue
        if progress:
            progress(", ".join(names))
        inputs = calibration[fold.readers[0]]
        moments, mean_abs = inputs.moments(), fold.pooled(inputs.mean_abs)
        weights = {name: found.weight(name, modules[name]) for name in names}
        pairs = [(weights[name], format) for name, format in names.items()]
        scale = best_scale(pairs, moments, mean_abs, ratios=ratios)
        if bool((scale != 1).any()):
            found.fold(lm, fold, scale)
            scale = found.columns[fold.readers[0]]
        inside = moments / scale.outer(scale)
        for name, format in names.items():
            if clips and not format.tensor:
                found.clips[name] = best_clip(
                    weights[name] * scale, inside, format, clips=clips, sweeps=sweeps
                )
    return found


def search(
    weight: Tensor,
    inputs: Tensor,
    mean_abs: Tensor,
    format: Format,
    *,
    ratios: int = 20,
    clips: Sequence[float] = CLIPS,
) -> tuple[Tensor, Tensor]:
    """Scale and clips of one matrix.

    Args:
        weight: [N, K].
        inputs: some of its inputs, [S, K].
        mean_abs: mean of |x| by channel, [K].

    Returns:
        (scale [K], clip [N, groups]), for quantise(weight · scale, format, clip=clip); the error of the outputs is
        at most that of rounding to nearest.
    """
    weight, inputs = weight.float(), inputs.float()
    moments = inputs.T @ inputs / len(inputs)
    scale = best_scale([(weight, format)], moments, mean_abs.float(), ratios=ratios)
    clip = best_clip(weight * scale, moments / scale.outer(scale), format, clips=clips)
    ones = torch.ones_like(scale), torch.ones_like(clip)
    if error(weight, moments, format, scale, clip) > error(weight, moments, format, *ones):
        return ones
    return scale, clip


def error(
    weight: Tensor, moments: Tensor, format: Format, scale: Tensor | None = None, clip: Tensor | None = None
) -> float:
    """Mean over inputs of the squared error of all outputs, |(Ŵ - W) x|².

    Args:
        weight: [N, K].
        moments: XᵀX / S, [K, K].
        scale: s [K], or none.
        clip: [N, groups], or none.
    """
    scaled = weight if scale is None else weight * scale
    wrong = quantise(scaled, format, clip=clip).dequantise() - scaled
    wrong = wrong if scale is None else wrong / scale
    return float(((wrong @ moments) * wrong).sum())


def scale_of(mean_abs: Tensor, ratio: float) -> Tensor:
    """s [K] for an exponent, with geometric mean 1; 1 everywhere if all inputs are zero.

    Args:
        mean_abs: [K] of the input.
    """
    size = mean_abs.clamp(min=FLOOR * float(mean_abs.mean()))
    if ratio == 0 or not bool((size > 0).all()):
        return torch.ones_like(mean_abs)
    logs = size.log() * ratio
    return (logs - logs.mean()).exp()


def best_scale(
    pairs: Sequence[tuple[Tensor, Format]], moments: Tensor, mean_abs: Tensor, *, ratios: int
) -> Tensor:
    """The scale [K] of the least error, each matrix's as a share of its output.

    Args:
        pairs: matrices [N, K] that read one tensor, and their formats.
        moments: XᵀX / S, [K, K].
        mean_abs: [K].
        ratios: exponents 1 / ratios, 2 / ratios … 1 are tried beside 0.
    """
    best, least = torch.ones_like(mean_abs), float("inf")
    output = [max(float(((weight @ moments) * weight).sum()), 1e-30) for weight, _ in pairs]
    for step in range(ratios + 1):
        scale = scale_of(mean_abs, step / max(ratios, 1))
        total = 0.0
        for (weight, format), size in zip(pairs, output, strict=True):
            clip = weight.new_full(clip_shape(weight, format), TYPICAL_CLIP)
            total += error(weight, moments, format, scale, clip) / size
        if total < least:
            best, least = scale, total
    return best


def best_clip(
    weight: Tensor,
    moments: Tensor,
    format: Format,
    *,
    clips: Sequence[float] = CLIPS,
    sweeps: int = SWEEPS,
) -> Tensor:
    """A factor for the range of every group, [N, groups]: coordinate descent from no clipping.

    Args:
        weight: [N, K], scaled.
        moments: XᵀX / S of the divided inputs, [K, K].
        clips: to try, beside 1.
        sweeps: over all groups.
    """
    factors = weight.new_tensor([1.0, *(each for each in clips if each != 1)])
    group = format.group or weight.shape[1]
    found = weight.new_ones(clip_shape(weight, format))
    if format.tensor:
        return found
    rows = max(1, AT_ONCE // (len(factors) * group))
    for start in range(0, len(weight), rows):
        part = weight[start : start + rows]
        wrong = quantise(part, format).dequantise() - part
        for _ in range(sweeps):
            for number, columns in enumerate(range(0, weight.shape[1], group)):
                span = slice(columns, columns + group)
                others = wrong.clone()
                others[:, span] = 0
                pull = others @ moments[:, span]
                tried = rounded(part[:, span], format, factors) - part[:, span]
                rise = ((tried @ moments[span, span] + 2 * pull) * tried).sum(-1)
                best = rise.argmin(0)
                wrong[:, span] = tried[best, torch.arange(len(part), device=part.device)]
                found[start : start + rows, number] = factors[best]
    return found


def clip_shape(weight: Tensor, format: Format) -> tuple[int, int]:
    """(N, groups): one factor for each scale."""
    return (1, 1) if format.tensor else (weight.shape[0], format.groups(weight.shape[1]))


def rounded(part: Tensor, format: Format, factors: Tensor) -> Tensor:
    """One group of every row, quantised and back with each of some clips: [factors, N, columns].

    Args:
        part: [N, columns], no wider than a group.
        factors: [clips].
    """
    copies = part.repeat(len(factors), 1)
    clip = factors.repeat_interleave(len(part))[:, None]
    if format.kind == "fp8":
        return quantise(copies, Format("fp8"), clip=clip).dequantise().view(len(factors), *part.shape)
    scale, zero = grid(copies[:, None], format, clip, part.dtype)
    low, high = format.limits
    middle = format.middle if zero is None else zero
    steps = copies.div_(scale).round_().add_(middle).clamp_(low, high).sub_(middle).mul_(scale)
    return steps.view(len(factors), *part.shape)
