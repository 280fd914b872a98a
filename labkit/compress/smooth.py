"""SmoothQuant: move the outliers of activations into the weights, so that both fit 8 bits.

    W x = (W · diag(s)) (x / s)        s_k = max |x_k|^a / max |W_k|^(1 - a)

An int8 row of activations has one scale, set by its largest channel; channels a hundred times smaller are left with
two or three steps. Weights have no such channels, so part of the difference is moved to them: a = 0.5 halves it on
the logarithmic scale.

Xiao et al. 2022, "SmoothQuant: Accurate and efficient post-training quantization for large language models".
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from labkit.compress.calibration import Calibration
from labkit.compress.folding import folds
from labkit.compress.layers import linears
from labkit.compress.scaled import Scaled
from labkit.errors import LabkitError
from labkit.kernels.formats import Format
from labkit.kernels.packed import quantise
from labkit.models import LM

INT8 = Format("int8")
ALPHAS = tuple(step / 10 for step in range(10))
FLOOR = 1e-3
"""Of the mean over channels: smaller maxima count as this large."""


def smooth(
    lm: LM,
    calibration: Calibration,
    *,
    alpha: float | None = 0.5,
    names: Collection[str] | None = None,
) -> Scaled:
    """Scales of every linear layer.

    Args:
        calibration: of this model, see `calibrate`.
        alpha: share of the difference that moves to the weights, 0 to 1; None: the best of ALPHAS for each tensor, no
            scaling among them, by the error of the outputs with both sides in int8.
        names: of the linear layers that will be in int8; all if not given.

    Raises:
        LabkitError: another alpha, or the calibration is not of this model.
    """
    if alpha is not None and not 0 <= alpha <= 1:
        raise LabkitError(f"alpha = {alpha} is no share.", "Give 0 to 1, or None to search.")
    found, modules = Scaled(), linears(lm)
    for fold in folds(lm):
        readers = [name for name in fold.readers if names is None or name in names]
        if not readers:
            continue
        inputs = calibration[readers[0]]
        weights = [found.weight(name, modules[name]) for name in readers]
        largest = fold.pooled(torch.stack([weight.abs().amax(0) for weight in weights]).amax(0))
        reach = fold.pooled(inputs.max_abs)
        if alpha is not None:
            scale = scale_of(reach, largest, alpha)
        else:
            scale = _best(weights, inputs.rows.to(reach), [scale_of(reach, largest, each) for each in ALPHAS])
        if bool((scale != 1).any()):
            found.fold(lm, fold, scale)
    return found


def scale_of(max_x: Tensor, max_w: Tensor, alpha: float) -> Tensor:
    """s [K], geometric mean 1; channels without inputs or weights are not smaller than FLOOR of the mean.

    Args:
        max_x: largest |x| by channel, [K].
        max_w: largest |w| by column, [K].
        alpha: 0 to 1.
    """
    x, w = (each.clamp(min=FLOOR * float(each.mean())) for each in (max_x, max_w))
    if not bool((x > 0).all() and (w > 0).all()):
        return torch.ones_like(max_x)
    logs = alpha * x.log() - (1 - alpha) * w.log()
    return (logs - logs.mean()).exp()


def error(weight: Tensor, rows: Tensor, scale: Tensor) -> float:
    """Mean squared error of the outputs with weights and activations in int8, summed over outputs.

    Args:
        weight: [N, K].
        rows: inputs [S, K]; each gets a scale of its own.
        scale: s, [K].
    """
    divided = rows / scale
    step = divided.abs().amax(1, keepdim=True).clamp(min=torch.finfo(rows.dtype).tiny) / 127
    product = ((divided / step).round() * step) @ quantise(weight * scale, INT8).dequantise().T
    return float((product - rows @ weight.T).square().sum(1).mean())


def _best(weights: Sequence[Tensor], rows: Tensor, scales: Sequence[Tensor]) -> Tensor:
    """The scale of the least error, 1 among them."""
    tried = [torch.ones_like(scales[0]), *scales]
    totals = [sum(error(weight, rows, scale) for weight in weights) for scale in tried]
    return tried[totals.index(min(totals))]
