"""Find the fastest tiling of packed linear layers on this device, as linear_tune.py does for plain ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from labkit.errors import LabkitError
from labkit.kernels import tuning
from labkit.kernels.device import available, power, processors
from labkit.kernels.formats import Format
from labkit.kernels.linear import arrival_counters
from labkit.kernels.linear_tune import READ, captured, triton_error, wrong
from labkit.kernels.packed import Packed, quantise
from labkit.kernels.packed_linear import launch, reference
from labkit.kernels.packed_tiling import (
    COLUMNS,
    NARROW,
    PackedTiling,
    chunks,
    default_tiling,
    operation,
    padded,
    tile_of,
)
from labkit.kernels.tuning import Timer


def tune(
    shapes: Sequence[tuple[int, int]],
    made: Format,
    dtype: torch.dtype,
    device: torch.device | str,
    timer: Timer,
    *,
    tokens: Sequence[int] = (1, 4, 16),
    refused: dict[str, str] | None = None,
) -> dict[str, dict[str, Any]]:
    """Time the candidates of every shape for one format; arguments and result as for linear_tune.tune.

    Raises:
        LabkitError: Triton does not compile for the device, or no candidate runs for a shape.
    """
    device = torch.device(device)
    if not available(device):
        raise LabkitError(f"Triton does not compile for {device}.", "Tune on an NVIDIA GPU from Ampere on.")
    found = {}
    for n, k in dict.fromkeys(shapes):
        weights = _weights(n, k, made, dtype, device)
        for count in dict.fromkeys(map(padded, tokens)):
            runs, tilings = _runs(weights, count, dtype, {} if refused is None else refused)
            name, seconds = tuning.fastest(runs, device, timer)
            key = tuning.key(operation(made, count), dtype, (n, k))
            found[key] = asdict(tilings[name]) | {"seconds": seconds[name] / len(weights)}
    return found


def candidates(n: int, k: int, tokens: int, made: Format, processors: int) -> list[PackedTiling]:
    """What to time for a weight [n, k]: the default first; `tokens` are padded ones."""
    first = default_tiling(n, k, tokens, made, processors)
    width = k // 2 if made.kind == "int4" else k
    tries = []
    if first.planes:
        tries = [
            PackedTiling(rows, tile, warps, stages, splits, planes=True)
            for rows, warps in ((64, 4), (128, 4), (128, 8), (64, 2), (128, 2))
            for tile in (64, 128, 256, 512)
            if tile <= power(width) and chunks(made, tokens, tile) <= COLUMNS and rows * tile <= 1 << 15
            if (warps == 2) == (chunks(made, tokens, tile) > NARROW)
            for stages in (2, 3)
            for splits in _splits(-(-n // rows), processors)
        ]
    if tokens > 1:
        tries += [
            PackedTiling(rows, tile_of(made, width), warps, stages, splits)
            for rows in (64, 128)
            for warps, stages in ((4, 3), (8, 4))
            for splits in _splits(-(-n // rows), processors) | {1}
        ]
    return list(dict.fromkeys([first, *(replace(each, splits=each.filled(max(1, width))) for each in tries)]))


def _splits(blocks: int, processors: int) -> set[int]:
    """Shares that give each processor two, three, four or six programs."""
    return {max(1, min(16, round(each * processors / blocks))) for each in (2, 3, 4, 6)}


def _weights(n: int, k: int, made: Format, dtype: torch.dtype, device: torch.device) -> list[Packed]:
    """Copies of a random weight, together larger than any cache."""
    generator = torch.Generator(device=device).manual_seed(0)
    drawn = torch.empty(n, k, dtype=dtype, device=device).normal_(generator=generator)
    first = quantise(drawn, made)
    copies = min(256, max(2, -(-READ // first.nbytes)))
    return [first, *(_cloned(first) for _ in range(copies - 1))]


def _cloned(packed: Packed) -> Packed:
    zeros = None if packed.zeros is None else packed.zeros.clone()
    return replace(packed, values=packed.values.clone(), scales=packed.scales.clone(), zeros=zeros)


def _runs(
    weights: list[Packed], tokens: int, dtype: torch.dtype, refused: dict[str, str]
) -> tuple[dict[str, Callable[[], object]], dict[str, PackedTiling]]:
    """The candidates that run and are right, each as a call that goes through all weights."""
    (n, k), device, made = weights[0].shape, weights[0].values.device, weights[0].format
    generator = torch.Generator(device=device).manual_seed(1)
    x = torch.empty(tokens, k, dtype=dtype, device=device).normal_(generator=generator)
    add = torch.empty(tokens, n, dtype=dtype, device=device).normal_(generator=generator)
    counters = arrival_counters(n * max(1, power(tokens) // 64), device)
    expected = reference(x.double(), weights[0], add=add.double())
    runs: dict[str, Callable[[], object]] = {}
    tilings = {}
    for tiling in candidates(n, k, tokens, made, processors(device)):
        product: Callable[..., Tensor] = partial(launch, add=add, counters=counters, tiling=tiling, pdl=True)
        name = str(tiling)
        try:
            off = wrong(product(x, weights[0]), expected)
            if not off:
                runs[name], tilings[name] = captured(product, x, weights), tiling
        except (RuntimeError, triton_error()) as error:  # too much shared memory, or no such dot
            off = f"{type(error).__name__}: {error}"
        if off:
            refused[f"{tuning.key(operation(made, tokens), dtype, (n, k))} {name}"] = off
    return runs, tilings
